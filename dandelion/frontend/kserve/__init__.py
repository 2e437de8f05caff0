"""KServe v2, the Open Inference Protocol, over HTTP: ``docs/kserve.md``.

A model is a function or composition of the caller's tenant; its inputs are the input sets, its
outputs the output sets.

::

    body --bodies, json_tensors--> tensors in binary form --tensors--> sets --> invocation
    body <--bodies, json_tensors-- tensors <-------------- tensors <-- sets <----+

`inference` has the part in the middle, which gRPC uses as well
(`dandelion.frontend_process.grpc_frontend`). `datatypes` has the element types, `models` what there
is to invoke, `routes` the HTTP routes.
"""
