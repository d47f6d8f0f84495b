"""The import package that engines know, carried out by mooncake_store.

`mooncake.store` has the object store, `mooncake.engine` the transfer engine.  Nothing is loaded
before it is imported by name.
"""

from __future__ import annotations

from mooncake._beside import refuse_beside_another

refuse_beside_another(list(__path__))
