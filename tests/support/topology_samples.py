"""Outputs of ibnetdiscover and lldpd, written by us from their manuals (two leaves, one spine, two rails), and
what Debian's lldpd printed."""

# ruff: noqa: E501 - as they are printed

IB = """\
#
# Topology file: generated on Fri Nov 20 03:00:00 2026
#
# Initiated from node b8cef60300aa0001 port b8cef60300aa0001

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8cef60300112200
switchguid=0xb8cef60300112200(b8cef60300112200)
Switch	41 "S-b8cef60300112200"		# "MF0;leaf1:MQM8700/U1" enhanced port 0 lid 5 lmc 0
[1]	"H-0c42a10300aabb00"[1](c42a10300aabb00) 		# "gpu0001 HCA-1" lid 10 4xHDR
[2]	"H-0c42a10300aabb02"[1](c42a10300aabb02) 		# "gpu0002.pod1.example mlx5_0" lid 11 4xHDR
[40]	"S-b8cef60300112400"[1]		# "MF0;spine1:MQM8700/U1" lid 7 4xHDR
[41]	"H-b8cef60300112208"[1](b8cef60300112208) 		# "Mellanox Technologies Aggregation Node" lid 12 4xHDR

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8cef60300112300
switchguid=0xb8cef60300112300(b8cef60300112300)
Switch	41 "S-b8cef60300112300"		# "MF0;leaf2:MQM8700/U1" enhanced port 0 lid 6 lmc 0
[1]	"H-0c42a10300aabb01"[1](c42a10300aabb01) 		# "gpu0001 HCA-2" lid 13 4xHDR
[2]	"H-0c42a10300aabb03"[1](c42a10300aabb03) 		# "gpu0002 mlx5_10" lid 14 4xHDR
[40]	"S-b8cef60300112400"[2]		# "MF0;spine1:MQM8700/U1" lid 7 4xHDR

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8cef60300112400
switchguid=0xb8cef60300112400(b8cef60300112400)
Switch	41 "S-b8cef60300112400"		# "Quantum Mellanox Technologies" base port 0 lid 7 lmc 0
[1]	"S-b8cef60300112200"[40]		# "MF0;leaf1:MQM8700/U1" lid 5 4xHDR
[2]	"S-b8cef60300112300"[40]		# "MF0;leaf2:MQM8700/U1" lid 6 4xHDR

vendid=0x2c9
devid=0x101b
sysimgguid=0x0c42a10300aabb00
caguid=0x0c42a10300aabb00
Ca	1 "H-0c42a10300aabb00"		# "gpu0001 HCA-1"
[1](c42a10300aabb00) 	"S-b8cef60300112200"[1]		# lid 10 lmc 0 "MF0;leaf1:MQM8700/U1" lid 5 4xHDR
"""
SPINE = "0xb8cef60300112400"

#: `lldpctl -f json`: one interface is an object, several are a list; the chassis' name is a key.
LLDP_ONE = """\
{"lldp": {"interface": {"ens1f0np0": {"via": "LLDP", "rid": "1", "age": "0 day, 01:02:03",
  "chassis": {"tor1.pod1.example": {"id": {"type": "mac", "value": "00:11:22:33:44:55"}, "descr": "a switch",
    "mgmt-ip": ["10.0.0.1"], "capability": [{"type": "Bridge", "enabled": true}]}},
  "port": {"id": {"type": "ifname", "value": "Ethernet1/1"}, "descr": "to gpu0001", "ttl": "120"}}}}}
"""
LLDP_MANY = """\
{"lldp": {"interface": [
  {"ens1f0np0": {"chassis": {"tor1": {"id": {"type": "mac", "value": "00:11:22:33:44:55"}}},
    "port": {"id": {"type": "mac", "value": "00:11:22:33:44:56"}, "descr": "Ethernet1/1"}}},
  {"ens1f1np1": {"chassis": {"tor2": {"id": {"type": "local", "value": "tor2"}}},
    "port": {"id": {"type": "local", "value": "49"}}}},
  {"docker0": {"chassis": {"x": {}}, "port": {"id": {"type": "ifname", "value": "veth1"}}}},
  {"ens2": {"chassis": {"id": {"type": "mac", "value": "00:11:22:33:44:57"}},
    "port": {"id": {"type": "ifname", "value": "eth0"}}}}]}}
"""
#: `-f json0`, one host on each line, with its name beside it.
LLDP_LINES = """\
{"host": "gpu0001", "lldp": [{"interface": [{"name": "eth0", "via": "LLDP", \
"chassis": [{"id": [{"type": "mac", "value": "00:11"}], "name": [{"value": "tor1"}]}], \
"port": [{"id": [{"type": "ifname", "value": "Ethernet1/1"}], "descr": [{"value": "x"}]}]}]}]}

{"host": "gpu0002.pod1.example", "lldp": [{"interface": [{"name": "eth0", \
"chassis": [{"name": [{"value": "tor1"}]}], "port": [{"id": [{"type": "ifname", "value": "Ethernet1/2"}]}]}]}]}
"""

#: Recorded from lldpd 1.0.16 of Debian 12: two of them at the ends of a pair of virtual interfaces, the other one
#: calling itself tor1. Not run by tests: it wants root and a network name space. `lldpctl -f json`,
#: `lldpctl -f json0`, `lldpcli -f json show neighbors`; here on one line each.
LLDPD_PRINTED = {
    "json": '{"lldp": {"interface": {"ens1f0": {"via": "LLDP", "rid": "1", "age": "0 day, 00:00:05", "chassis": {"tor1": {"id": {"type": "mac", "value": "ba:1c:e3:bd:9c:f6"}, "descr": "a switch", "mgmt-ip": "fe80::b81c:e3ff:febd:9cf6", "mgmt-iface": "2", "capability": [{"type": "Bridge", "enabled": false}, {"type": "Router", "enabled": false}, {"type": "Wlan", "enabled": false}, {"type": "Station", "enabled": true}]}}, "port": {"id": {"type": "mac", "value": "ba:1c:e3:bd:9c:f6"}, "descr": "sw1", "ttl": "4", "auto-negotiation": {"supported": false, "enabled": false, "current": "10GbaseT - Four-pair Category 6A or better, full duplex mode only"}}}}}}',
    "json0": '{"lldp": [{"interface": [{"name": "ens1f0", "via": "LLDP", "rid": "1", "age": "0 day, 00:00:05", "chassis": [{"id": [{"type": "mac", "value": "ba:1c:e3:bd:9c:f6"}], "name": [{"value": "tor1"}], "descr": [{"value": "a switch"}], "mgmt-ip": [{"value": "fe80::b81c:e3ff:febd:9cf6"}], "mgmt-iface": [{"value": "2"}], "capability": [{"type": "Bridge", "enabled": false}, {"type": "Router", "enabled": false}, {"type": "Wlan", "enabled": false}, {"type": "Station", "enabled": true}]}], "port": [{"id": [{"type": "mac", "value": "ba:1c:e3:bd:9c:f6"}], "descr": [{"value": "sw1"}], "ttl": [{"value": "4"}], "auto-negotiation": [{"supported": false, "enabled": false, "current": [{"value": "10GbaseT - Four-pair Category 6A or better, full duplex mode only"}]}]}]}]}]}',
    "show neighbors": '{"lldp": {"interface": {"ens1f0": {"via": "LLDP", "rid": "1", "age": "0 day, 00:00:05", "chassis": {"tor1": {"id": {"type": "mac", "value": "ba:1c:e3:bd:9c:f6"}, "descr": "a switch", "mgmt-ip": "fe80::b81c:e3ff:febd:9cf6", "mgmt-iface": "2", "capability": [{"type": "Bridge", "enabled": false}, {"type": "Router", "enabled": false}, {"type": "Wlan", "enabled": false}, {"type": "Station", "enabled": true}]}}, "port": {"id": {"type": "mac", "value": "ba:1c:e3:bd:9c:f6"}, "descr": "sw1", "ttl": "4"}}}}}',
}
