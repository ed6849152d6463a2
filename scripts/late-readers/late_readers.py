"""What a late reader gets: from Mooncake's transfer engine, from NIXL, and from Portcullis.

Two processes on this machine. The owner lends a buffer that has tenant A's secret, and the reader reads it. The owner then uses the
same memory for tenant C's secret. The reader comes late: it reads and writes with what it was given for A's buffer. scripts/late-readers/run
sets up what this needs.

Exit code: 0 if Portcullis refused the late read and the late write, 1 if not, 77 if Portcullis is not installed.
"""

import ctypes
import importlib
import json
import logging
import os
import subprocess
import sys

SECRET_A = b"TENANT-A SECRET v1"
SECRET_C = b"TENANT-C SECRET v2"
WRITTEN = b"OWNED"
BYTES = 4096
# Seconds for which the reader may use the buffer. Portcullis enforces it; the others have nobody to tell it to.
LEASE = 0.5


class Refused(Exception):
    """The access failed. The text says how."""


class LocalBuffer:
    """Memory of this process at an address that stays."""

    def __init__(self):
        self.memory = (ctypes.c_char * BYTES)()
        self.address = ctypes.addressof(self.memory)

    def put(self, data):
        self.memory[: len(data)] = data

    def start(self):
        return bytes(self.memory[: len(SECRET_A)])


class Mooncake:
    name = "Mooncake transfer engine"
    module = "mooncake.engine"
    packages = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")

    def __init__(self):
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
        os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
        self.engine = importlib.import_module(self.module).TransferEngine()
        self.checked("initialize", self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
        self.buffer = LocalBuffer()
        self.checked("register_memory", self.engine.register_memory(self.buffer.address, BYTES))

    def checked(self, what, code):
        if code != 0:
            raise Refused(f"{what} returned {code}")

    # The owner's side.

    def lend(self):
        self.buffer.put(SECRET_A)
        return {"segment": f"127.0.0.1:{self.engine.get_rpc_port()}", "address": self.buffer.address}

    def take(self, _answer):
        pass

    def reuse(self):
        self.buffer.put(SECRET_C)

    def content(self):
        return self.buffer.start()

    # The reader's side.

    def attach(self, lent):
        self.lent = lent
        return {}

    def read(self):
        self.buffer.put(bytes(len(SECRET_A)))
        segment, address = self.lent["segment"], self.lent["address"]
        self.checked("read", self.engine.transfer_sync_read(segment, self.buffer.address, address, len(SECRET_A)))
        return self.buffer.start()

    def write(self):
        self.buffer.put(WRITTEN)
        segment, address = self.lent["segment"], self.lent["address"]
        self.checked("write", self.engine.transfer_sync_write(segment, self.buffer.address, address, len(WRITTEN)))


class Nixl:
    name = "NIXL (UCX, tcp)"
    module = "nixl._api"
    packages = ("nixl",)

    def __init__(self):
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
        os.environ.setdefault("UCX_LOG_LEVEL", "error")
        os.environ.setdefault("UCX_TLS", "tcp,self")
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
        api = importlib.import_module(self.module)
        logging.disable(logging.INFO)  # NIXL's goes to the standard output.
        self.agent = api.nixl_agent(f"process {os.getpid()}", api.nixl_agent_config(backends=["UCX"]))
        self.buffer = LocalBuffer()
        self.agent.register_memory([(self.buffer.address, BYTES, 0, "")], "DRAM")

    def lend(self):
        self.buffer.put(SECRET_A)
        return {"metadata": self.agent.get_agent_metadata().hex(), "address": self.buffer.address}

    def take(self, _answer):
        pass

    def reuse(self):
        self.buffer.put(SECRET_C)

    def content(self):
        return self.buffer.start()

    def attach(self, lent):
        self.owner = self.agent.add_remote_agent(bytes.fromhex(lent["metadata"]))
        self.address = lent["address"]
        return {}

    def transfer(self, verb, length):
        mine = self.agent.get_xfer_descs([(self.buffer.address, length, 0)], "DRAM")
        theirs = self.agent.get_xfer_descs([(self.address, length, 0)], "DRAM")
        handle = self.agent.initialize_xfer(verb, mine, theirs, self.owner)
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise Refused(f"{verb} ended as {state}")

    def read(self):
        self.buffer.put(bytes(len(SECRET_A)))
        self.transfer("READ", len(SECRET_A))
        return self.buffer.start()

    def write(self):
        self.buffer.put(WRITTEN)
        self.transfer("WRITE", len(WRITTEN))


class Portcullis:
    """The lease ends. The node has room for one such buffer: C's is where A's was, and there is none for C before A's lease is over."""

    name = "Portcullis, the lease has ended"
    module = "portcullis_memory"
    packages = ("portcullis-memory",)
    bytes = 5 << 19
    lease = LEASE

    def __init__(self):
        self.portcullis = importlib.import_module(self.module)

    def lend(self):
        self.node = self.portcullis.Node(memory="4MiB")
        self.session = self.tenant_a()
        with self.session.allocate(self.bytes, keep=True) as block:
            block.write(SECRET_A)
            self.object = block.object
        return {"address": self.node.address, "object": str(self.object)}

    def tenant_a(self):
        # The reader's tenant: the user that both processes run as.
        return self.portcullis.connect(self.node.address)

    def take(self, _answer):
        # The buffer is to be freed. The node does so at the end of the reader's lease.
        self.session.free(self.object)

    def reuse(self):
        self.other = self.node.connect(tenant="tenant-c")
        while True:
            try:
                self.block = self.other.allocate(self.bytes, lifetime=10)
                break
            except self.portcullis.NodeError as error:
                if error.name != "out-of-memory":
                    raise
        self.block.write(SECRET_C)

    def content(self):
        return self.block.read_bytes(len(SECRET_C))

    def attach(self, lent):
        self.session = self.portcullis.connect(lent["address"])
        reference = self.find(lent)
        self.permission = self.session.acquire(reference, lifetime=self.lease, rights="rw", shared=True)
        return {}

    def find(self, lent):
        return self.portcullis.ObjectRef(lent["object"])

    def read(self):
        return self.access(lambda: self.permission.read_bytes(len(SECRET_A)))

    def write(self):
        return self.access(lambda: self.permission.write(WRITTEN))

    def access(self, act):
        try:
            return act()
        except self.portcullis.Error as error:
            raise Refused(f"{type(error).__name__}, {error}") from error


class PortcullisTakenBack(Portcullis):
    """The owner takes the buffer back early. By the reader's own clock its lease runs on: the node's NIC is what refuses."""

    name = "Portcullis, taken back in the middle of the lease"
    lease = 10.0

    def tenant_a(self):
        return self.node.connect(tenant="tenant-a")

    def lend(self):
        lent = super().lend()
        self.session.publish("buffer", self.object)
        self.session.share("buffer", f"uid:{os.getuid()}", rights="rw")
        return lent

    def find(self, _lent):
        return self.session.lookup("buffer", tenant="tenant-a").object

    def take(self, _answer):
        pass

    def reuse(self):
        self.session.unshare("buffer", f"uid:{os.getuid()}")
        self.session.free(self.object)
        super().reuse()


ALL = (Mooncake, Nixl, Portcullis, PortcullisTakenBack)


def attempt(act):
    try:
        return {"got": (act() or b"").hex()}
    except Refused as refused:
        return {"refused": str(refused)}


def reader(kind, orders, answers):
    """The other process: does what the owner's process tells it."""
    party = next(party for party in ALL if party.__name__ == kind)()
    for line in orders:
        order, *lent = json.loads(line)
        if order == "attach":
            answer = party.attach(*lent)
        else:
            answer = attempt(getattr(party, order))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Reader:
    """The reader's process, with a pipe each way. What its libraries print is not in the way: the pipes are extra ones."""

    def __init__(self, party):
        order_end, self.order = os.pipe()
        self.answer, answer_end = os.pipe()
        ends = (order_end, answer_end)
        command = [sys.executable, __file__, type(party).__name__, *map(str, ends)]
        self.process = subprocess.Popen(command, pass_fds=ends)
        for end in ends:
            os.close(end)
        self.orders, self.answers = os.fdopen(self.order, "w"), os.fdopen(self.answer)

    def ask(self, *order):
        self.orders.write(json.dumps(order) + "\n")
        self.orders.flush()
        answer = self.answers.readline()
        if not answer:
            raise RuntimeError(f"the reader's process has ended: {self.process.wait()}")
        return json.loads(answer)

    def end(self):
        self.orders.close()
        self.process.wait(timeout=30)


def scene(party):
    """Plays it with one library. Returns the answers to the first read, the late read and the late write, and C's bytes."""
    reader = Reader(party)
    party.take(reader.ask("attach", party.lend()))
    first = reader.ask("read")
    party.reuse()
    late_read, late_write = reader.ask("read"), reader.ask("write")
    content = party.content()
    reader.end()
    return first, late_read, late_write, content


def version(party):
    from importlib import metadata

    for package in party.packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return ""


def told(answer, done):
    if "refused" in answer:
        return f"refused: {answer['refused']}"
    return done or f"success, {bytes.fromhex(answer['got'])}"


def main():
    code = 77
    for kind in ALL:
        title = f"{kind.name} {version(kind)}".strip()
        try:
            importlib.import_module(kind.module)
        except (ImportError, OSError) as error:
            print(f"{title}\n  NOT INSTALLED, so not shown: {error}\n", flush=True)
            continue
        first, late_read, late_write, content = scene(kind())
        print(title)
        print(f"  A's reader, in time:       {told(first, '')}")
        print(f"  late read, memory is C's:  {told(late_read, '')}")
        print(f"  late write:                {told(late_write, 'success')}")
        print(f"  what C finds in its memory: {content}\n", flush=True)
        if kind.module == Portcullis.module:
            in_time = first.get("got") == SECRET_A.hex()
            held = in_time and "refused" in late_read and "refused" in late_write and content == SECRET_C
            code = 0 if held and code != 1 else 1
    if code == 77:
        print("SKIPPED: Portcullis is not installed for this Python")
    else:
        print("Portcullis refused all late accesses." if code == 0 else "FAILED: Portcullis did not do what it promises, see above.")
    return code


if __name__ == "__main__":
    if len(sys.argv) == 4:
        reader(sys.argv[1], os.fdopen(int(sys.argv[2])), os.fdopen(int(sys.argv[3]), "w"))
    else:
        sys.exit(main())
