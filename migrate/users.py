"""Users and permissions of a broker that starts with the configuration of another broker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from amq.config.reading import is_xml, read_bytes
from amq.core.errors import ConfigError
from amq.security import PasswordHash, Users, check_name, hash_password
from amq.security.permissions import Permissions
from amq_migrate import foreign
from amq_migrate.foreign import FileUser

USERS_MAX = 200  # each start hashes all passwords, and takes 50 ms for each


def read_users(path: str, properties: Mapping[str, str]) -> Users:
    """The users in the configuration `path` of another broker. Raises ConfigError."""
    data = read_bytes(path)
    if not is_xml(data):
        raise ConfigError(f"{path}: is a configuration file and no users file: give another usersFile")
    found = foreign.read(data, path, properties, os.environ).users
    check_users(found, path)
    if len(found) > USERS_MAX:
        raise ConfigError(
            f"{path}: has more than {USERS_MAX} users, whose passwords every start would hash: hash them once with "
            "`amq config import FILE --users USERS`, and give -o usersFile=USERS"
        )
    hashes: dict[str, PasswordHash] = {user.name: hash_password(user.password) for user in found}
    told = f"{path}: holds passwords that can be read: hash them with `amq config import FILE --users USERS`"
    return Users(hashes, (told,))


def read_permissions(path: str, properties: Mapping[str, str], generation: int = 1) -> Permissions:
    """The rules in the configuration `path` of another broker. Raises ConfigError."""
    data = read_bytes(path)
    found = foreign.read(data, path, properties, os.environ).permissions if is_xml(data) else None
    if found is None:
        raise ConfigError(f"{path}: is a configuration file without rules: give another permissionsFile")
    return Permissions.of(found, path, generation)


def check_users(users: Iterable[FileUser], path: str) -> None:
    """Raises ConfigError, with the line, for a name that no user can have, or that two have."""
    seen = set()
    for user in users:
        try:
            check_name(user.name)
            if user.name in seen:
                raise ValueError(f"the user {user.name} is here twice: keep one")
        except ValueError as error:
            raise ConfigError(f"{path}:{user.line}: {error}", code="USER_NAME_UNUSABLE") from error
        seen.add(user.name)
