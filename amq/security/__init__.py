"""Access to the broker: the users file and the check of logins against it."""

from amq.security.authentication import Authenticator
from amq.security.certificate_users import CertificateUsers
from amq.security.credentials import Credentials
from amq.security.gate import LoginGate
from amq.security.users import ANONYMOUS, PasswordHash, Users, check_name, hash_password
from amq.security.users_edit import add_user, list_users, remove_user

__all__ = [
    "ANONYMOUS", "Authenticator", "CertificateUsers", "Credentials", "LoginGate", "PasswordHash", "Users", "add_user",
    "check_name", "hash_password",
    "list_users", "remove_user",
]  # fmt: skip
