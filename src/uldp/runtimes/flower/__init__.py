"""Flower as the transport of a real federation. Its processes transport bytes only; ours live on when they die.

::

    uldp serve                                                            uldp join
      ServedRun -- FlowerTransport <-- ServerApp -- SuperLink ~~ SuperNode -- ClientApp --> SiloProcess
                    (socket)           (Flower, TLS)                     (socket)

``client_app`` and ``server_app`` are what Flower starts, for every message and every run anew. They import neither
PyTorch nor our sessions. ``transport`` is what the server's process talks to; ``processes`` starts and stops Flower's
programs; ``federation`` keeps them running. ``internals`` alone uses more of Flower than it documents.
"""
