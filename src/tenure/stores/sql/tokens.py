"""The tokens of a server."""

import msgspec

from tenure.core.ids import Actor, Epoch, Namespace, ScheduleName
from tenure.core.instants import Instant
from tenure.core.outcomes import Moment
from tenure.core.tokens import LoadedToken, NewToken, Token, TokenId
from tenure.core.vocabulary import Role
from tenure.core.workers import SILENT_AFTER
from tenure.ports import NameCounts
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.rows import Row, value_from
from tenure.stores.sql.schedules import SqlSchedules

TOKEN_COLUMNS: tuple[str, ...] = Token.__struct_fields__
COLUMN_PLACEHOLDERS = {"token_columns": ", ".join(TOKEN_COLUMNS)}

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlTokens(Part):
    """`tenure.ports.StoredTokens`."""

    def __init__(self, database: Database, schedules: SqlSchedules) -> None:
        super().__init__(database)
        self._schedules = schedules

    def create(self, new: NewToken) -> Token:
        """Keep a token, with the time of the store's clock."""
        facts = {name: getattr(new, name) for name in NewToken.__struct_fields__}
        facts |= {name: _encode(facts[name]).decode() for name in ("queues", "kinds")}
        query = self._query("create_token", **facts | {"role": new.role.value})
        [[row]] = self._write(lambda tx: tx.fetch(query, last=True))
        return _token(row)

    def load(self, token_id: TokenId) -> LoadedToken:
        """The token of this id, if there is one."""
        found, [(now, _)] = self._read(
            lambda tx: tx.fetch(
                self._query("load_token", token_id=token_id), self._query("moment"), last=True
            )
        )
        return LoadedToken(Instant(now), _token(found[0]) if found else None)

    def all(self) -> list[Token]:
        """Every token, oldest first."""
        return [_token(row) for row in self._rows(self._query("list_tokens"))]

    def revoke(self, token_id: TokenId) -> tuple[ScheduleName, ...] | None:
        """End a token for good, and pause what its holder scheduled. [SC24]"""
        return self._write(lambda tx: self._revoked(tx, token_id))

    def _revoked(self, tx: Transaction, token_id: TokenId) -> tuple[ScheduleName, ...] | None:
        rows, _, [(now, epoch)] = tx.fetch(
            self._query("lock_tokens_of_one_name", token_id=token_id),
            self._query("revoke_token", token_id=token_id),
            self._query("moment"),
        )
        found = [_token(row) for row in rows]
        token = next((each for each in found if each.id == token_id), None)
        if token is None:
            return None
        at = Moment(now=Instant(now), epoch=Epoch(epoch), entropy=b"")
        return self._schedules.pause_after_revocation(tx, token, found, at)

    def use(self, token_id: TokenId) -> None:
        """Remember that it was used now."""
        query = self._query("use_token", token_id=token_id)
        self._write(lambda tx: tx.fetch(query, last=True))

    def count_leases(self, namespace: Namespace, actor: Actor) -> int:
        """How many leases a principal has."""
        query = self._query("count_leases", namespace=namespace, actor=actor)
        [(leases,)] = self._rows(query)
        return int(leases)

    def count_names(self, namespace: Namespace) -> NameCounts:
        """How many queues, schedules, live workers and kinds a namespace has. [H77]"""
        query = self._query("count_names", namespace=namespace, silent_after_us=SILENT_AFTER)
        [counts] = self._rows(query)
        return NameCounts(*counts)


def _token(row: Row) -> Token:
    facts = dict(zip(TOKEN_COLUMNS, row, strict=True))
    facts |= {name: _decode_names(facts[name]) for name in ("queues", "kinds")}
    role = value_from(Role, facts["role"], where=f"the role of token {facts['id']}")
    return Token(**facts | {"role": role, "may_declare": bool(facts["may_declare"])})
