"""SecurityOptions: the options of scope node that say who may connect, and over what."""

from __future__ import annotations

from dataclasses import dataclass

from amq.config.option import OptionScope, Section

SECURITY = Section(OptionScope.NODE, "security")


@dataclass(frozen=True)
class SecurityOptions:
    """Logins and TLS. Durations are seconds (`_s`)."""

    __slots__ = ()

    anonymous: str = SECURITY.choice(
        "loopback",
        "Clients that may connect without a login: none (no), those on this host (loopback), or all (yes).",
        "Use yes on a trusted network, and no if even local programs must log in.",
        choices=("loopback", "yes", "no"),
        reload=True,
        elsewhere=("anonymousAccessAllowed",),
    )
    users_file: str = SECURITY.path(
        "",
        "File with the users and their salted password hashes (`amq user add` writes it); blank means no users.",
        "Set it if clients connect from other hosts.",
        reload=True,
        elsewhere=("simpleAuthenticationPlugin",),
    )
    permissions_file: str = SECURITY.path(
        "",
        "File with the rights of roles on destinations, in TOML; blank means that every user may do everything.",
        "Set it if users must not read or write the destinations of others. With a file, there is no right without an "
        "entry.",
        reload=True,
        elsewhere=("authorizationPlugin", "security-settings"),
    )
    certificate: str = SECURITY.path(
        "",
        "PEM file with the certificate that the broker shows on its TLS ports, and with those between it and the CA.",
        "Set it to serve stomp+ssl://, openwire+ssl://, ssl:// or auto+ssl://.",
        reload=True,
        elsewhere=("keyStorePath", "keyStore", "ssl_options.certfile"),
    )
    certificate_key: str = SECURITY.path(
        "",
        "PEM file with the private key of the certificate; blank means that the file of the certificate holds it.",
        "Keep the key in a file that only the broker's user can read.",
        reload=True,
        elsewhere=("ssl_options.keyfile",),
    )
    certificate_key_password_file: str = SECURITY.path(
        "",
        "File whose first line is the passphrase of the private key; blank means that the key has none.",
        "Set it if the key must be encrypted where it lies.",
        reload=True,
        elsewhere=("keyStorePassword", "ssl_options.password"),
    )
    trust: str = SECURITY.path(
        "",
        "PEM file with the CAs whose client certificates the broker accepts.",
        "Set it with clientCertificate.",
        reload=True,
        elsewhere=("trustStorePath", "trustStore", "ssl_options.cacertfile"),
    )
    revoked_certificates: str = SECURITY.path(
        "",
        "PEM file with the revocation lists (CRL) of those CAs. The broker refuses client certificates that a list "
        "names, and those of a CA without a current list.",
        "Set it if client certificates must be withdrawn before they expire.",
        reload=True,
        elsewhere=("crlPath",),
    )
    client_certificate: str = SECURITY.choice(
        "none",
        "Whether the broker asks TLS clients for a certificate: no, yes, or it refuses those that have none (need).",
        "Use need to keep strangers out before they can say anything.",
        choices=("none", "want", "need"),
        reload=True,
        elsewhere=("needClientAuth", "wantClientAuth", "ssl_options.verify"),
    )
    certificate_user: str = SECURITY.choice(
        "none",
        "The part of a client's certificate that is its user name: its common name (cn), distinguished name as Java "
        "writes it (dn), or one alternative name of a kind (two: refused). none: a certificate names no user.",
        "Set it so that clients need no passcode. certificateUsersFile goes before it.",
        choices=("none", "cn", "dn", "dns", "email", "uri"),
        reload=True,
        elsewhere=("ssl_cert_login_from",),
    )
    certificate_users_file: str = SECURITY.path(
        "",
        "File with lines NAME=DN: the user whose certificate has that distinguished name, as Java writes it.",
        "Set it to choose user names freely, or to go on with the file of ActiveMQ or Artemis.",
        reload=True,
        elsewhere=("org.apache.activemq.jaas.textfiledn.user",),
    )
    tls_minimum_version: str = SECURITY.choice(
        "1.3",
        "The oldest version of TLS that clients may speak.",
        "Use 1.2 if clients are too old for 1.3: Java 8 before update 261, OpenSSL 1.0.",
        choices=("1.2", "1.3"),
        reload=True,
        elsewhere=("transport.enabledProtocols", "enabledProtocols"),
    )
    tls_optional: bool = SECURITY.boolean(
        False,
        "Whether the TLS ports also serve clients that speak no TLS.",
        "Set it for as long as clients change over to TLS one by one.",
    )
    token_issuer: str = SECURITY.text(
        "",
        "Issuer of JSON web tokens that clients may send as passcode, as it names itself (`iss`): an https URL; blank "
        "means that no token is accepted. Needs the extra amq[jwt].",
        "Set it if an identity provider (OIDC) knows the users, such as Keycloak or Entra.",
        reload=True,
        elsewhere=("auth_oauth2.issuer", "oauth"),
    )
    token_audience: str = SECURITY.text(
        "",
        "The name of this broker, or of its group, at the issuer: a token must be for it (`aud`).",
        "Set it with tokenIssuer. Do not share it with other services: their tokens would be accepted here.",
        reload=True,
        elsewhere=("auth_oauth2.resource_server_id",),
    )
    token_algorithms: str = SECURITY.text(
        "RS256,ES256",
        "The ways of signing that the broker accepts, with commas between: RS256, RS384, RS512, PS256, PS384, PS512, "
        "ES256, ES384, ES512, EdDSA.",
        "Name the one that your issuer uses.",
        reload=True,
        elsewhere=("auth_oauth2.algorithms",),
    )
    token_keys: str = SECURITY.text(
        "",
        "URL of the issuer's public keys (JWKS); blank means that the broker asks the issuer for it.",
        "Set it if the issuer has no /.well-known/openid-configuration, or if the broker reaches it elsewhere.",
        reload=True,
        elsewhere=("auth_oauth2.jwks_url", "auth_oauth2.jwks_uri"),
    )
    token_trust: str = SECURITY.path(
        "",
        "PEM file with the CAs of the issuer's web server; blank means those of this host.",
        "Set it if the issuer's certificate is of a private CA.",
        reload=True,
        elsewhere=("auth_oauth2.https.cacertfile",),
    )
    token_user: str = SECURITY.text(
        "sub",
        "The claim of a token that is the user's name.",
        "Keycloak's `sub` is an id that people cannot read: use `preferred_username`, or `azp` for services.",
        reload=True,
        elsewhere=("auth_oauth2.preferred_username_claims",),
    )
    token_roles: str = SECURITY.text(
        "",
        "The claim with the user's roles in the permissionsFile: a list, or words with blanks between. Dots lead into "
        "objects: `realm_access.roles`. Blank means that tokens bring no roles.",
        "Set it if the issuer decides who has which role.",
        reload=True,
        elsewhere=("auth_oauth2.additional_scopes_key",),
    )
    ldap_urls: str = SECURITY.text(
        "",
        "Servers of the LDAP directory that knows users who are not in usersFile, with commas between: "
        "`ldaps://a.example.com,ldaps://b.example.com`. If one does not answer, the next one is asked. Blank means no "
        "directory. Needs the extra amq[ldap].",
        "Set it if users and groups are in OpenLDAP, Active Directory or the like.",
        reload=True,
        elsewhere=("auth_ldap.servers", "LDAPLoginModule", "connectionURL"),
    )
    ldap_start_tls: bool = SECURITY.boolean(
        True,
        "Whether a connection to an ldap:// server changes to TLS (StartTLS) before the first password is sent.",
        "Use false only for a directory on this host.",
        reload=True,
        elsewhere=("auth_ldap.use_starttls", "startTls"),
    )
    ldap_trust: str = SECURITY.path(
        "",
        "PEM file with the CAs of the directory's servers; blank means those of this host.",
        "Set it if their certificates are of a private CA.",
        reload=True,
        elsewhere=("auth_ldap.ssl_options.cacertfile",),
    )
    ldap_user_base: str = SECURITY.text(
        "",
        "The entry below which users are: `ou=people,dc=example,dc=com`.",
        "Set it with ldapUrls.",
        reload=True,
        elsewhere=("userBase", "auth_ldap.dn_lookup_base"),
    )
    ldap_user_attribute: str = SECURITY.text(
        "uid",
        "The attribute with the user's name.",
        "Active Directory has `sAMAccountName`.",
        reload=True,
        elsewhere=("userSearchMatching", "auth_ldap.dn_lookup_attribute"),
    )
    ldap_bind_user: str = SECURITY.text(
        "",
        "DN of the account with which the broker searches users and groups. Blank: users are directly below "
        "ldapUserBase, and each reads its own groups.",
        "Set it if users are in several branches, or may not read the groups.",
        reload=True,
        elsewhere=("connectionUsername", "auth_ldap.dn_lookup_bind.user_dn"),
    )
    ldap_bind_password_file: str = SECURITY.path(
        "",
        "File whose first line is the password of ldapBindUser.",
        "Set it with ldapBindUser.",
        reload=True,
        elsewhere=("connectionPassword", "auth_ldap.dn_lookup_bind.password"),
    )
    ldap_group_base: str = SECURITY.text(
        "",
        "The entry below which groups are. Their names (`cn`) are the user's roles in the permissionsFile. Blank means "
        "that the directory gives no roles.",
        "Set it if the directory decides who has which role.",
        reload=True,
        elsewhere=("roleBase", "auth_ldap.group_lookup_base"),
    )
    ldap_group_member: str = SECURITY.text(
        "member",
        "The attribute of a group with the DNs of its members; `memberUid` has their names.",
        "Use uniqueMember or memberUid for groups of these kinds, and member:1.2.840.113556.1.4.1941: for groups in "
        "groups of Active Directory.",
        reload=True,
        elsewhere=("roleSearchMatching",),
    )
    ldap_timeout_s: float = SECURITY.duration(
        "5s",
        "How long the broker waits for each step of a server of the directory, in whole seconds.",
        "Use less if a server is often away and the next one should be asked sooner.",
        minimum=1000,
        maximum=60_000,
        reload=True,
        elsewhere=("auth_ldap.timeout",),
    )
