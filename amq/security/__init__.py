"""Access to the broker: the ways to log in, and who may do what."""

from amq.security.authentication import Authenticator
from amq.security.certificate_users import CertificateUsers
from amq.security.credentials import Credentials
from amq.security.gate import LoginGate
from amq.security.login import ANONYMOUS, Claim, Login, User, Way
from amq.security.users import PasswordHash, Users, check_name, hash_password
from amq.security.users_edit import add_user, list_users, remove_user

__all__ = [
    "ANONYMOUS",
    "Authenticator",
    "CertificateUsers",
    "Claim",
    "Credentials",
    "Login",
    "LoginGate",
    "PasswordHash",
    "User",
    "Users",
    "Way",
    "add_user",
    "check_name",
    "hash_password",
    "list_users",
    "remove_user",
]
