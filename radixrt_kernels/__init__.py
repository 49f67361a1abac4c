"""Operations that are too hot for plain Python, each with a readable definition; knows nothing of the runtime above."""
