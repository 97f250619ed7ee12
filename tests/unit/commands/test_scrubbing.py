"""No secret passes, whatever it is called and however it is written; what helps to understand stays."""

import json
import string
from collections.abc import Callable
from random import Random
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.bootstrap.pseudonyms import pseudonyms
from healer.bootstrap.scrubbing import REMOVED, Scrubber

WORDS = st.text(string.ascii_letters + string.digits + "_-", min_size=20, max_size=60)
#: As people choose passwords: with what means something in JSON, YAML, URLs and regular expressions.
ODD = st.text(
    string.ascii_letters + string.digits + "!$%&*()[]{}+?^|~\"'\\/@:=#; ä密", min_size=8, max_size=40
)


BASE64 = string.ascii_letters + string.digits + "-_"


def yaml_line(secret: str) -> str:
    return f"channels:\n  - webhook_secret: {json.dumps(secret)}\n"


#: Where a secret of somebody else may be written: each must be recognised by its look.
UNKNOWN: dict[str, Callable[[str], str]] = {
    "a token of healer": lambda s: f"denied heal_ab12_{s} from 10.0.0.1",
    "bearer": lambda s: f"curl -H 'Authorization: Bearer {s}' https://healer.example",
    "header in JSON": lambda s: json.dumps({"headers": {"Authorization": f"Bearer {s}"}}),
    "basic": lambda s: f'proxy-authorization="Basic {s}"',
    "cookie": lambda s: f"GET / HTTP/1.1\r\nCookie: a=b; __Host-healer={s}\r\nHost: x",
    "set-cookie": lambda s: f"Set-Cookie: healer={s}; HttpOnly",
    "DSN": lambda s: f"could not connect to postgresql://healer:{s}@db.example/healer",
    "redis": lambda s: f"redis://:{s}@redis.example:6379/0",
    "setting": lambda s: f"HEALER_BMC_PASSWORD={s} healer worker",
    "TOML": lambda s: f'HEALER_WEBHOOK_SECRET = "{s}"\n',
    "YAML": lambda s: f"routing_key: {s}\nkind: pagerduty\n",
    "YAML of words": lambda s: f"smtp:\n  password: {s} and more\n",
    "JSON": lambda s: json.dumps({"event": "x", "api_key": s, "n": 1}),
    "JSON in JSON": lambda s: json.dumps({"line": json.dumps({"access_token": s})}),
    "query": lambda s: f"POST https://oapi.dingtalk.com/robot/send?access_token={s}&x=1 400",
    "webhook": lambda s: f"https://hooks.slack.com/services/T000/B000/{s}",
    "slack": lambda s: f"token xoxb-{s}",
    "JWT": lambda s: f"SLURM_JWT: eyJhbGciOiJIUzI1NiJ9.{s}.{s}",
    "key": lambda s: f"-----BEGIN OPENSSH PRIVATE KEY-----\n{s}\n{s}\n-----END OPENSSH PRIVATE KEY-----\n",
    "SQL": lambda s: f"CREATE ROLE healer_api LOGIN PASSWORD '{s}'; statement failed",
    "option": lambda s: f"running: site-tool --password {s} --node gpu0001",
    "option of a token": lambda s: f"running: site-tool --api-token={s}",
    "curl": lambda s: f"curl -u admin:{s} https://bmc.example/redfish/v1",
    "ipmitool": lambda s: f"ipmitool -I lanplus -H bmc1 -U admin -P {s} chassis power status",
    "sshpass": lambda s: f"sshpass -p {s} ssh switch1",
    "environment of Slurm": lambda s: f"SLURM_JWT={s}",
    "credential of munge": lambda s: f"POST /enroll MUNGE:{s}/+{s}==: 401",
    "hash": lambda s: f"root:$6$saltsalt${s}:19000:0:99999:7:::",
    "argon2": lambda s: f"hash $argon2id$v=19$m=65536,t=3,p=4$c2FsdA${s}",
    "webhook of Discord": lambda s: f"https://discord.com/api/webhooks/123/{s} answered 404",
    "webhook of Teams": lambda s: f"https://x.webhook.office.com/webhookb2/{s}/IncomingWebhook/{s}",
    "bot of Telegram": lambda s: f"POST https://api.telegram.org/bot12345:{s}/sendMessage",
    "block of YAML": lambda s: f"channels:\n  - kind: x\n    secret: |\n      {s}\n      {s}\n    on: true\n",
    "sentence": lambda s: f"the password is {s}",
    "SNMP": lambda s: f"community: {s}\n",
    "passphrase of a directory": lambda s: f"bind_pw: {s}\n",
    "Hugging Face": lambda s: f"login hf_{s}",
    "Docker": lambda s: f"login dckr_pat_{s}",
    "bare option": lambda s: f"exec: site-bmc -u root -p {s} power",
    "bare option of a list": lambda s: f"argv ['racadm', '-u', 'root', '-p', '{s}', 'getsysinfo']",
    "racadm": lambda s: f"racadm -r idrac1 -u root -p {s} set iDRAC.Users.2.Password {s}",
    "IPMI key": lambda s: f"ipmipower -h bmc1 -u admin -p {s} -k {s} --stat",
    "IPMI set": lambda s: f"ipmitool user set password 2 {s}",
    "mysql": lambda s: f"mysqldump -uroot -p{s} slurm_acct_db",
    "LDAP": lambda s: f"ldapsearch -x -D cn=admin -w {s} -b dc=x",
    "Redis": lambda s: f"redis-cli -h r1 -a {s} ping",
    "requirepass": lambda s: f"requirepass {s}\nmasterauth {s}\n",
    "SNMP of version 3": lambda s: f"snmpget -v3 -u ops -a SHA -A {s} -x AES -X {s} pdu1 sysUpTime.0",
    "community": lambda s: f"snmpwalk -v2c -c {s} pdu1",
    "switch": lambda s: f"snmp-server community {s} RO\nusername admin password 7 {s}\n",
    "Samba": lambda s: f"smbclient -U admin%{s} //nas/home",
    "chpasswd": lambda s: f"echo 'root:{s}' | chpasswd",
    "sudo": lambda s: f"echo {s} | sudo -S systemctl restart slurmd",
    "htpasswd": lambda s: f"htpasswd -bc /etc/nginx/users admin {s}",
    "openssl": lambda s: f"openssl pkcs12 -in x.p12 -passin pass:{s}",
    "pass": lambda s: f"pass: {s}",
    "db_pass": lambda s: f"db_pass={s} dbPass = {s} rootpw={s}",
    "camel": lambda s: json.dumps({"bmcPin": s, "adminPwd": s, "wifiPsk": s}),
    "netrc": lambda s: f"machine bmc1 login root password {s}",
    "pgpass": lambda s: f"db.example:5432:healer:healer_api:{s}",
    "arrow": lambda s: f"'password' => '{s}', :token => \"{s}\"",
    "colon and equals": lambda s: f"api_key := {s}",
    "tuple": lambda s: f"headers=[('x-auth-token', '{s}'), ('host', 'x')]",
    "environment of a container": lambda s: json.dumps([{"name": "DB_PASSWORD", "value": s}]),
    "XML": lambda s: f"<user>root</user><Password>{s}</Password>",
    "percent": lambda s: f"body: user%3Droot&password%3D{s}",
    "list of YAML": lambda s: f"access:\n  tokens:\n    - {s}\n    - '{s}'\n  on: true\n",
    "list in a line": lambda s: f'tokens = ["{s}", "{s}"]',
    "account key": lambda s: f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={s};",
    "SASL": lambda s: f"> AUTH PLAIN {s}",
    "log of words": lambda s: f"msg=login failed user=root password {s}1",
    "call": lambda s: f"Settings(slack_token=SecretStr('{s}'), mode='auto')",
    "digest": lambda s: f'Authorization: Digest username="x", realm="y", response="{s}"',
    "other languages": lambda s: f"密码：{s} / Passwort: {s} / mot de passe: {s}",
    "table": lambda s: f"| user | root |\n| password | {s} |",
    "callback": lambda s: f"GET /callback?code={s}&state={s} 302",
    "quoted option": lambda s: f"exec: site-bmc -p '{s}'; ipmitool -P'{s}' sol activate",
    "user of SNMP": lambda s: f"createUser ops SHA {s} AES {s}",
    "recovery": lambda s: f"recovery code: {s}",
    "key cut short": lambda s: f"-----BEGIN PRIVATE KEY-----\n{s}\n",
}  # fmt: skip


@pytest.mark.parametrize("where", UNKNOWN)
@given(secret=WORDS)
def test_a_secret_is_recognised_by_its_look(where: str, secret: str) -> None:
    text = UNKNOWN[where](secret)
    assert secret in text
    assert secret not in Scrubber([])(text)
    assert secret not in json.dumps(Scrubber([]).document({"line": text}))


@pytest.mark.parametrize("where", ["user of SNMP", "camel"])
def test_a_secret_that_looks_like_an_option_is_removed(where: str) -> None:
    secret = "-00000000000000000PW"
    assert secret not in Scrubber([])(UNKNOWN[where](secret))


@pytest.mark.parametrize(
    "text", ['exec "site-tool --password {}": exit status 1', "'site-tool --token {}': 1"]
)
def test_the_last_option_of_a_quoted_command_is_removed(text: str) -> None:
    assert "correcthorse" not in Scrubber([])(text.format("correcthorse"))


@pytest.mark.parametrize("word", ["https://", "https://x/", "https://a?", "https://hooks"])
def test_a_long_text_without_blanks_costs_by_its_length(word: str) -> None:
    """Each `https://` of 400 kB searched to the end of the text: ten minutes, as any line of a log may be."""
    assert Scrubber([])(word * (400_000 // len(word)))


@given(secret=WORDS)
def test_every_value_under_the_name_of_a_secret_is_removed(secret: str) -> None:
    document = {
        "argv": ["racadm", "-p", secret, "--api-token", secret], "tokens": [secret, {"of": secret}],
        "credentials": {"user": "root", "rows": [secret]}, "env": [{"name": "DB_PASSWORD", "value": secret}],
    }  # fmt: skip
    assert secret not in json.dumps(Scrubber([]).document(document))
    assert Scrubber([]).document(["sbatch", "-p", "gpu", "-N", "4"]) == ["sbatch", "-p", "gpu", "-N", "4"]


@pytest.mark.parametrize("alphabet", [string.ascii_letters + string.digits, BASE64, "0123456789abcdef"])
@given(seed=st.integers())
def test_random_looking_text_is_removed_without_any_name(alphabet: str, seed: int) -> None:
    """Equal secrets get equal marks, so that a reader can see that they are the same."""
    draw = Random(seed)
    one, other = ("".join(draw.choices(alphabet, k=48)) for _ in range(2))
    text = Scrubber([])(f"unexpected answer {one}, then {other}, then {one}")
    assert text == "unexpected answer (removed-1), then (removed-2), then (removed-1)"


@given(secret=ODD, prefix=st.text("abc \n", max_size=5))
def test_known_secret_is_removed_from_any_place(secret: str, prefix: str) -> None:
    secret = secret.strip()
    if len(secret) < 8:
        return
    scrub = Scrubber([secret])
    for text in (
        f"{prefix}{secret}",
        json.dumps({"line": f"x {secret} y"}),
        json.dumps({"line": json.dumps({"a": secret})}),
        json.dumps({"line": secret}, ensure_ascii=False),
        f"https://h.example/{quote(secret, safe='')}",
        yaml_line(secret),
    ):
        left = scrub(text)
        assert secret not in left and quote(secret, safe="") not in left.replace(REMOVED, ""), text


@given(password=WORDS, key=WORDS)
def test_the_parts_of_a_url_are_secrets_too(password: str, key: str) -> None:
    scrub = Scrubber([f"https://u:{password}@hook.example/services/{key}?sig={key}x"])
    left = scrub(f"login failed for {password}; POST /services/{key} 404; sig {key}x")
    assert password not in left and key not in left


def test_a_known_key_does_not_hide_the_look_of_another() -> None:
    pem = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"
    scrub = Scrubber([pem.format("MC4CAQAwBQYDK2VwBCIEIOurs")])
    assert scrub(pem.format("MC4CAQAwBQYDK2VwBCIEITheirs")) == f"{REMOVED}\n"
    assert "IEIOurs" not in scrub("the line MC4CAQAwBQYDK2VwBCIEIOurs alone")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
        '{"HEALER_TOKEN_KEY_FILE": "/etc/healer/token-key", "event": "run left", "run": "r1"}',
        "signals:\n  - kind: kernel-log\n    when: line matches X\n",
        "2026-11-20 token: expires in 3 days".replace("token:", "tokens end"),
        "postgresql://db.example:5432/healer and https://healer.example/nodes",
        'healer_credentials_refused{cluster="pod1"} 3.0',
        "srun -p gpu -N 4; sbatch -p interactive train.sh",
        "ssh -p 2222 gpu0001; mkdir -p /var/lib/healer; python -m site ~/train.py -p ./conf",
        "GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301 of gpu-a100-sxm4-80gb-node0123.cluster.example lost",
        "boot 0f6a1c2e-9b1d-4c55-8f0e-2b9a7d3c1e44: mlx5_0 port 1 guid 0x506b4b0300ab1234 down",
        "/sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0/infiniband/mlx5_3/ports/1/counters/symbol_error",
        "sqlalchemy.exc.OperationalError: (psycopg.OperationalError) connection to 10.0.0.1 failed",
        "2026-11-26T13:12:23.123456+00:00 detector gpu_row_remap_failure_pending_nodes_total 12",
        "a token ends in 3 days; the passwords file is missing",
    ],
)
def test_text_that_is_no_secret_is_kept(text: str) -> None:
    assert Scrubber(["another-secret"])(text) == text


@given(secret=ODD)
def test_a_document_stays_one(secret: str) -> None:
    secret = f"{secret.strip()}-and-more"
    scrub = Scrubber([secret])
    document = {
        "password": "unknown", "tokens": {"rows": 3}, "HEALER_SLACK_TOKEN": None, "pin_token": 1234, "n": 5,
        "list": [f"a {secret}", True], "line": json.dumps({"cookie": "x=y"}),
    }  # fmt: skip
    left = scrub.document(document)
    assert left == {
        "password": REMOVED, "tokens": {"rows": 3}, "HEALER_SLACK_TOKEN": None, "pin_token": REMOVED, "n": 5,
        "list": [f"a {REMOVED}", True], "line": json.dumps({"cookie": REMOVED}),
    }  # fmt: skip


def test_short_words_are_not_taken_for_secrets() -> None:
    assert Scrubber(["", "on", "x"])("on the node x") == "on the node x"


def test_names_get_the_same_other_name_everywhere() -> None:
    other = pseudonyms(
        {"person": {"ada", "bo", "root"}, "node": {"gpu0001", "gpu0002"}, "job": {"llama-70b"}}
    )
    text = other("ada drained gpu0001 (gpu00011 stays), root saw llama-70b of ada on gpu0002; bo")
    first, second = text.split()[0], text.split()[2]
    assert first.startswith("person-") and text.count(first) == 2
    assert second in {"node-1", "node-2"} and "gpu00011" in text and "root" in text
    assert "llama" not in text and text.endswith("bo"), "two letters are a word, no name"
