"""Array libraries: one class each, in the files ``*_library.py``.

``library.py``: the interface of a library. ``torch_library.py``: PyTorch, Keras, ExecuTorch, vLLM.
``numpy_and_runtimes_library.py``: NumPy, Numba, ONNX Runtime, OpenVINO, ggml. ``jax_and_mlx_library.py``: JAX, MLX.
``torch_attention.py``: what backends on PyTorch share, for example torch.compile.
"""
