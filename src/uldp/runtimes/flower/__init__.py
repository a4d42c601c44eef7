"""Flower as the carrier of a real federation. Its processes carry bytes only; ours live on when they die.

::

    uldp serve                                                        uldp join
      Serving -- Hub <-- ServerApp -- SuperLink ~~ SuperNode -- ClientApp --> SiloProcess
              (socket)            (Flower, TLS)                        (socket)

``client_app`` and ``server_app`` are what Flower starts, for every message and every run anew. They import neither
PyTorch nor our sessions. ``hub`` is the carrier that the server's process talks to; ``processes`` starts and stops
Flower's programs.
"""
