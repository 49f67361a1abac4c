"""Running the model: weights in, logits and samples out.  Knows tensors and no request.

Where does my class go?  Where kernels are queued: ``stream``.  Logits to tokens: ``sampler``.  Weights to a model:
``loader``.  One step on the device: ``runner``.
"""
