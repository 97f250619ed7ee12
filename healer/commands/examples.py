"""One or two examples for each command; `--help` shows them below the options."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

EXAMPLES = {
    "up": "healer up\nHEALER_CONFIG=/etc/healer/healer.toml healer up --listen 127.0.0.1:8443",
    "demo": "healer demo\nhealer demo --nodes 64 --slurm sim",
    "watch": "healer watch --prometheus http://prometheus.example:9090 --slurm",
    "api": "HEALER_CONFIG=/etc/healer/healer.toml healer api",
    "detector": "healer detector --cluster pod1",
    "worker": "healer worker --cluster pod1",
    "scheduler": "healer scheduler --cluster pod1",
    "scraper": "healer scraper --cluster pod1",
    "person": 'healer person mara\nhealer person mara --end --to joe --reason "left the team"',
    "nodes": "healer nodes --verdict isolate\nhealer nodes --search gpu01 --json\nhealer nodes --lemons",
    "goodput": "healer goodput --by user\nhealer goodput --by cause --from 2026-11-01T00:00:00Z --json",
    "plan spares": "healer plan spares --nodes 128 --mtbf 2000\n"
    "healer plan spares --job 4711 --assume checkpoint_s=1200 --json",
    "node-package": "healer node-package --url https://healer.example:8443 | clush -a -b 'sh -s install'",
    "node-keys": "healer node-keys /etc/healer/keys",
    "learn": "healer learn --node gpu0001\nhealer learn --node gpu0001 --yes\nhealer learn --show",
    "incidents": "healer incidents\nhealer incidents --severity P0 --json\nhealer incidents 9a780a14",
    "evidence": "healer evidence 9a780a14\nhealer evidence 9a780a14 --out gpu0001.txt.gz",
    "runs": "healer runs --state waiting\nhealer runs --node gpu0001 --limit 5\nhealer runs 4f1c22d0",
    "run": 'healer run drain --node gpu0001 --reason "loose power cable" --dry-run\n'
    'healer run validate --node gpu0001 --reason "back from repair"',
    "approve": 'healer approve 4f1c22d0 --reason "the job has saved"',
    "reject": 'healer reject 4f1c22d0 --reason "faulty sensor"',
    "cancel": 'healer cancel 4f1c22d0 --reason "the technician is there"',
    "retry": 'healer retry 4f1c22d0 --reason "slurmctld is back"\n'
    'healer retry 4f1c22d0 --from drain --reason "start over"',
    "undo": 'healer undo 4f1c22d0 --reason "false alarm"',
    "pause": 'healer pause --reason "network maintenance" --for 2h\nhealer pause --list\n'
    "healer pause --end 77ab01c2 --reason done",
    "reconcile": 'healer reconcile\nhealer reconcile --repair --reason "after the restore"',
    "import": "healer import /var/log/slurm/slurmctld.log /var/log/remote --output past.jsonl.zst\n"
    "healer import kern.log* sacct.txt --as 'kern*=syslog' --time-zone Europe/Berlin --output past.jsonl.zst",
    "report": "healer report past.jsonl.zst --output report.html\nhealer report past.jsonl.zst --json",
    "replay": "healer replay /var/lib/healer/recordings --since 30d\n"
    "healer replay recordings --rules changed/ --against done --fail-on lost",
    "recordings": "healer recordings\nhealer recordings --cluster pod1 --json",
    "simulate": "healer simulate --list\nhealer simulate llama3-54d --seed 7 --json",
    "backup": "healer backup /backup --passphrase-file /etc/healer/backup-passphrase --keep 14\n"
    "healer backup /backup/healer.tar --without-keys",
    "restore": "healer restore healer-20261125T030000Z.tar --data-dir /var/lib/healer "
    "--passphrase-file pass\n"
    "healer restore --in-place",
    "support-bundle": "healer support-bundle\nhealer support-bundle --pseudonymise --output help.tgz",
    "doctor": "healer doctor\nhealer doctor --json | jq '.checks[] | select(.ok | not)'\nhealer doctor --fix",
    "db upgrade": "healer db upgrade --plan\nhealer db upgrade",
    "token create": "healer token create --role admin --name mara --once\n"
    "healer token create --role signals --name relay1 --vouches kernel --expires 90d",
    "token list": "healer token list\nhealer token list --person mara --json",
    "token rotate": "healer token rotate 1b2c3d4e --overlap 24h",
    "token revoke": "healer token revoke 1b2c3d4e\nhealer token revoke --accounts-of mara",
    "account add": "healer account add mara --role operator\nhealer account add joe --group gpu-ops",
    "account list": "healer account list",
    "account password": "healer account password mara",
    "account reset": "healer account reset mara",
    "access who": "healer access who\nhealer access who --group gpu-ops",
    "break-glass seal": "healer break-glass seal",
    "break-glass use": 'healer break-glass use --reason "the identity provider is down" --name mara',
    "break-glass end": 'healer break-glass end --reason "the provider is back"',
    "break-glass status": "healer break-glass status",
    "send kernel-log": "journalctl -k -o short-monotonic | healer send kernel-log --node gpu0001",
    "send heartbeat": "healer send heartbeat --node gpu0001",
    "send metrics": "healer send metrics --node gpu0001 samples.json",
    "send openmetrics": "curl -s http://gpu0001:9400/metrics | healer send openmetrics --node gpu0001",
    "send remote-write": "healer send remote-write body.snappy",
    "send step-times": "healer send step-times --job 4711 steps.json\n"
    "healer send step-times --job 4711 --from-log train.log --follow",
    "send checkpoints": "healer send checkpoints --job 4711 checkpoints.json",
    "send nvidia-smi": "nvidia-smi -q -x | healer send nvidia-smi --node gpu0001",
    "signals senders": "healer signals senders --limit 20",
    "signals losses": "healer signals losses --cluster pod1",
    "signals unknown": "healer signals unknown --json",
    "login": "HEALER_URL=https://healer.example:8443 healer login\n"
    "HEALER_URL=https://healer.example:8443 healer login --munge\n"
    "HEALER_URL=https://healer.example:8443 healer login --slurm-token",
    "logout": "healer logout",
    "messages": "healer messages --state failed",
    "messages retry": 'healer messages retry 5d6e7f80 --reason "the mail server is back"',
    "rules check": "healer rules check --rules /etc/healer/rules",
    "rules test": "healer rules test --rules /etc/healer/rules",
    "rules schema": "healer rules schema > playbook.schema.json",
    "rules propose": "healer rules propose --from past.jsonl.zst --output rules-proposed",
    "rules try": 'healer rules try changed.yaml --as policies.yaml --days 30 --reason "less noise"',
    "rules proof": 'healer rules proof --from-replay 0c1d2e3f --rule gpu-lost --reason "reviewed"',
    "topology import": "ibnetdiscover | healer topology import -\n"
    "healer topology import lldp.json --host gpu0001 --merge --yes",
    "audit verify": "healer audit verify\nhealer audit verify --against /mnt/witness/healer.jsonl",
    "audit export": "healer audit export --out audit.jsonl",
    "hook install": "healer hook install --slurm-conf /etc/slurm/slurm.conf --url https://healer.example:8443",
    "hook uninstall": "healer hook uninstall --slurm-conf /etc/slurm/slurm.conf --yes",
}


def add_help(app: "typer.Typer", path: str = "") -> None:
    """Gives each command of `app`, and of its groups, its examples and a page of ours."""
    from healer.commands.help_pages import HelpfulCommand, HelpfulGroup

    for command in app.registered_commands:
        name = command.name or (command.callback.__name__.strip("_") if command.callback else "")
        if text := EXAMPLES.get(f"{path}{name}".replace("_", "-")):
            command.epilog = text
        command.cls = HelpfulCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            name = f"{path}{group.name or group.typer_instance.info.name}"
            group.typer_instance.info.cls = HelpfulGroup
            group.typer_instance.info.epilog = EXAMPLES.get(name)
            add_help(group.typer_instance, f"{name} ")
