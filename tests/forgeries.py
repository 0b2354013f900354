"""What a kernel that turned against its server says and leaves behind, as plain data: code of calls of run_code.

The code of a kernel owns its key and its sockets, so it can sign anything.
"""

from __future__ import annotations

FORGE = r"""
import json, time
from jupyter_client.session import Session
kernel = get_ipython().kernel
parent = kernel.get_parent("shell")
forger = Session(key=kernel.session.key, signature_scheme="hmac-sha256", session="forger")
out = kernel.iopub_socket

def header(kind, **more):
    fixed = {"msg_id": "f1", "username": "u", "session": "s", "date": "2026-01-01T00:00:00Z", "version": "5.3"}
    return {**fixed, "msg_type": kind, **more}
def raw(*parts, topic=b"forged", signature=None):
    parts = [p if isinstance(p, bytes) else json.dumps(p, default=str).encode() for p in parts]
    out.send_multipart([topic, b"<IDS|MSG>", forger.sign(parts) if signature is None else signature, *parts])
def say(kind, content, parent=parent["header"], **more): raw(header(kind, **more), parent, {}, content)
"""

FORGERIES = {
    "bad_signature": """
content = {'name': 'stdout', 'text': 'FAKE'}
raw(header('stream'), parent['header'], {}, content, signature=b'0' * 64)""",
    "no_delimiter": "out.send_multipart([b'x', b'y', b'z'])",
    "one_frame": "out.send_multipart([b''])",
    "few_parts": "raw(header('stream'))",
    "bad_json": "raw(b'{', b'{', b'{', b'{')",
    "brackets": "raw(b'[' * 100_000, b'{}', b'{}', b'{}')\nraw(header('stream'), parent['header'], {}, b'[' * 100_000)",
    "huge_integer": """
raw(header('stream'), parent['header'], {}, b'{"name": "stdout", "text": ' + b'9' * 5000 + b'}')""",
    "invalid_utf8": 'raw(header(\'stream\'), parent[\'header\'], {}, b\'{"name": "stdout", "text": "\\xff"}\')',
    "bad_date": "say('status', {'execution_state': 'busy'}, date='not a date')",
    "no_msg_id": "raw({'msg_type': 'stream'}, parent['header'], {}, {})",
    "header_is_a_list": """
raw([1], parent['header'], {}, {})
raw(header('stream'), [1], {}, {})
raw(header('stream'), 5, 5, 5)""",
    "content_of_wrong_types": """
for content in (5, None, [], 'x', {'name': 5, 'text': 5}, {'data': 5}, {'data': {'image/png': 5}},
                {'data': {'text/plain': {'a': 1}}}, {'data': {'text/html': None}}, {'data': {'': 'x'}},
                {'data': {'image/png': '%%%'}, 'transient': []}, {'ename': 7, 'evalue': [], 'traceback': [5, None]},
                {'wait': 'x'}, {'execution_state': []}, {'data': {'application/json': [9] * 10}, 'metadata': 7}):
    for kind in ('stream', 'display_data', 'update_display_data', 'status', 'comm_open', 'nonsense', 5):
        say(kind, content)""",
    "deep_json": """
deep = b'[' * 900 + b']' * 900
raw(header('display_data'), parent['header'], {}, b'{"data": {"application/json": ' + deep + b'}}')""",
    "millions_of_values": """
for values in (b'[],', b'{"a":1},', b'"2026-01-01T00:00:00Z",'):
    data = b'{"application/json": [' + values * 2_000_000 + b'1]}'
    raw(header('display_data'), parent['header'], {}, b'{"data": ' + data[:30 << 20] + b'}')
say('display_data', {'data': {f'a/{n}': {} for n in range(100_000)}})
say('nonsense', {'traceback': ['x'] * 400_000})""",
    "orders_of_all_kinds": """
for order in (True, -1, 0, 10**30, 'x', None, [], 10**17):
    raw(header('display_data'), parent['header'], {'prims_order': order}, {'data': {'text/plain': 'x'}})""",
    "other_parent": "say('stream', {'name': 'stdout', 'text': 'FAKE'}, parent={'msg_id': 'another'})",
    "idle": "say('status', {'execution_state': 'idle'})",
    "many": "for _ in range(20_000): raw(b'{', b'{', b'{', b'{')",
    "replay": "for _ in range(3): say('stream', {'name': 'stderr', 'text': 'again'})",
    "input_request": "say('input_request', {'prompt': 'FAKE', 'password': True})",
    "marks": "for n in (5, 10**17, 3, 7): print(f'\\x1b]prims;{n}\\x07', end='', flush=True)",
}

# What a run says of itself in these may be wrong: it lies. It must end, and the server must go on.
LIES = {
    "error": "say('error', {'ename': 'Fake', 'evalue': 'x', 'traceback': ['y']})",
    "lone_surrogates": r"""
for kind in ('stream', 'display_data', 'execute_result', 'error'):
    raw(header(kind), parent['header'], {}, br'''{"name": "stdout", "text": "\ud800", "data": {"text/plain": "\udfff",
        "text/\ud800": "x"}, "ename": "\ud800", "evalue": "\ud801", "traceback": ["\ud802"]}''')""",
    "nan": "raw(header('display_data'), parent['header'], {}, b'{\"data\": {\"application/json\": [NaN, Infinity]}}')",
    "forty_megabytes": "say('stream', {'name': 'stdout', 'text': 'x' * 40_000_000})\ntime.sleep(1)",
    "many_displays": "for n in range(5000): say('display_data', {'data': {'text/plain': str(n)}})",
    "reply_then_go_on": r"""
socket = kernel.shell_socket if hasattr(kernel, 'shell_socket') else kernel.shell_stream
ident = kernel._parent_ident['shell']
kernel.session.send(socket, 'execute_reply', {'status': 'ok', 'execution_count': 1}, parent=parent, ident=ident)
time.sleep(600)""",
    "idle_then_go_on_for_ever": "say('status', {'execution_state': 'idle'})\ntime.sleep(600)",
    "closed_sockets": "out.io_thread.socket.close()\ntime.sleep(0.2)",
    "no_descriptors": "os.closerange(0, 1000)\ntime.sleep(600)",
    "pipes_filled_by_a_child": """
if os.fork() == 0:
    os.setsid()
    while True: os.write(1, b'x' * 60_000)
time.sleep(0.3)""",
    "half_closed_sockets": """
import socket as sockets
for number in range(3, 200):
    try: sockets.socket(fileno=os.dup(number)).shutdown(sockets.SHUT_RD if number % 2 else sockets.SHUT_WR)
    except OSError: pass
time.sleep(0.2)""",
    "connection_files_exchanged": """
import ipykernel
file = ipykernel.get_connection_file()
folder = os.path.dirname(file)
for name in os.listdir(folder): os.unlink(f"{folder}/{name}")
os.symlink("/etc/passwd", file)
for name in ("s-1", "s-2", "s-3"): os.symlink("/dev/zero", f"{folder}/{name}")
for name in ("crash.log", "network.log"): os.mkfifo(f"{folder}/{name}")
time.sleep(600)""",
    "connection_folder_gone": """
import ipykernel, shutil
folder = os.path.dirname(ipykernel.get_connection_file())
shutil.rmtree(folder)
os.symlink("/", folder)
time.sleep(600)""",
    "endless_crash_report": """
import ipykernel
crash = os.path.dirname(ipykernel.get_connection_file()) + "/crash.log"
with open(crash, "r+b") as file: file.truncate(900 << 20)
time.sleep(600)""",
    "clocks": """
import datetime
time.time = time.monotonic = lambda: -1e18
for date in ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "2026-02-30T25:61:61Z", 5, None):
    say("status", {"execution_state": "busy"}, date=date)""",
    "signals_ignored_or_answered": """
import signal
for number in range(1, 65):
    try: signal.signal(number, lambda *_: None)
    except (OSError, ValueError): pass
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
until = time.monotonic() + 600
while time.monotonic() < until: pass""",
    "all_of_its_group_killed": "import signal\nos.killpg(0, signal.SIGKILL)",
    "files_that_come_and_go": """
if os.fork() == 0:
    os.setsid()
    while True:
        for n in range(50):
            os.makedirs(f"output/d{n}/e", exist_ok=True)
            open(f"output/d{n}/e/f", "w").close()
        for n in range(50):
            os.unlink(f"output/d{n}/e/f"); os.rmdir(f"output/d{n}/e"); os.rmdir(f"output/d{n}")
            os.symlink("/etc", f"output/d{n}"); os.unlink(f"output/d{n}")
time.sleep(0.3)""",
    "a_million_files": """
os.mkdir("output/many")
try:
    for n in range(1_000_000): open(f"output/many/{n}", "w").close()
finally: time.sleep(600)""",
}

# Takes the kernel's connection for outputs, and sends a message there that never ends.
ENDLESS_MESSAGE = """
import ipykernel, os, socket as sockets, struct
folder = os.path.dirname(ipykernel.get_connection_file())
name = f"{folder}/s-{json.load(open(ipykernel.get_connection_file()))['iopub_port']}"
def its(number):
    try: one = sockets.socket(fileno=os.dup(number))
    except OSError: return
    listens = one.getsockopt(sockets.SOL_SOCKET, sockets.SO_ACCEPTCONN)
    return one if one.getsockname() == name and not listens else None
connection = next(filter(None, map(its, range(3, 200))))
connection.setblocking(True)
print("connected", flush=True)
while True: connection.sendall(b"\\3" + struct.pack(">Q", 1 << 20) + bytes(1 << 20))"""
LIES["endless_message"] = ENDLESS_MESSAGE

# Leaves behind what a server must not follow, open, wait for, load or stumble over.
PLANT = r"""
import gzip
top = W.workspace + "/output/"
os.symlink("/etc/passwd", top + "link_absolute")
os.symlink("../" * 12 + "etc/passwd", top + "link_relative")
os.symlink("/etc", top + "link_folder")
os.symlink("link_loop", top + "link_loop")
os.mkfifo(top + "fifo")
os.chdir(top)
socket.socket(socket.AF_UNIX).bind("socket")
os.chdir(W.workspace)
with open(top + "sparse.csv", "wb") as file: file.truncate(60 << 20)
for name in ("a\nb\x1b]0;owned\x07.txt", "\u202egpj.exe", "tab\there.txt"): open(top + name, "w").close()
open(os.fsencode(top) + b"bad\xff.txt", "w").close()
os.mkdir(top + "locked")
open(top + "locked/inside.txt", "w").close()
os.chmod(top + "locked", 0)
with open(top + "bomb.json", "w") as file: file.write("[" * 100_000)
with gzip.open(top + "bomb.gz", "wb", 1) as file:
    for _ in range(200): file.write(bytes(1 << 20))
open(top + "ok.txt", "w").write("fine")
print("planted", flush=True)
# Last, because a server may stop a run for it.
os.mkdir(top + "deep"); os.chdir(top + "deep")
for _ in range(3000): os.mkdir("d"); os.chdir("d")
os.chdir(W.workspace)
"""
