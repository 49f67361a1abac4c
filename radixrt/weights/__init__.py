"""Where weights come from: names to files (``resolve``), file formats (``gguf``, ``safetensors``), and filling a model.

Formats yield tensors under Hugging Face names; ``fill`` copies them into the places a model offers.  Nothing here runs
code from a model folder, and only GGUF and safetensors are read.
"""
