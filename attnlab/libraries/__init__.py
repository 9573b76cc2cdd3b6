"""Array libraries: one class each, in the files ``*_library.py``.

``library.py``: what attnlab asks of a library. ``torch_attention.py``: what backends on PyTorch share.
``torch_compiled.py``: torch.compile. ``runtimes_library.py``: ONNX Runtime, OpenVINO, ggml.
``torch_operators_library.py``: ExecuTorch, vLLM.
"""
