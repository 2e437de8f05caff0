"""What the backends `s3`, `kv` and `files` share: named stores, requests, and the loop over items.

A **store** is a place that the operator names in the options of a backend: a bucket, a database, a
folder. Functions name it in their items, and know nothing else of it: neither its address nor its
credentials. Each store lists the tenants that may use it; to others it does not exist.

Life of a call: its items are read (`request`); the store of each is looked up for the tenant of the
call, and the path is checked and put behind the store's prefix (`jobs`); then the jobs run, as many
at a time as the store and the engine allow (`engine`). The first item that fails cancels the others
and fails the call. What arrives is counted against the function's limits before it is received
(`bodies`).

Invariants:

- Text of a user is only ever the path or an option of a request, never an address or a file name.
- A message of a store's server is never passed on, since it may have parts of a signature or of
  credentials in it. Errors are made of status codes and of short codes (`failures`).
- A `Secret` leaves its object in one place of each backend, where the client is made.

`docs/io-functions.md` describes functions, requests and options for their users.
"""
