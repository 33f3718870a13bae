"""The end made of Linux's rdma_rxe: obeys the commands of protocol.go through pyverbs."""
import errno, json, mmap, socket, sys, time

from pyverbs import enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import RecvWR, SGE, SendWR

DEPTH = 256
RD_ATOMIC = 8
ACK_TIMEOUT = 16  # 268 ms, as at xroce's end: see guest.go
ACCESS = {'read': e.IBV_ACCESS_REMOTE_READ, 'write': e.IBV_ACCESS_REMOTE_WRITE, 'atomic': e.IBV_ACCESS_REMOTE_ATOMIC,
          'flush': getattr(e, 'IBV_ACCESS_FLUSH_GLOBAL', 0)}
MTU = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
OPCODE = {'SEND': e.IBV_WR_SEND, 'SEND with immediate': e.IBV_WR_SEND_WITH_IMM, 'SEND with invalidate': e.IBV_WR_SEND_WITH_INV,
          'WRITE': e.IBV_WR_RDMA_WRITE, 'WRITE with immediate': e.IBV_WR_RDMA_WRITE_WITH_IMM, 'READ': e.IBV_WR_RDMA_READ,
          'compare-and-swap': e.IBV_WR_ATOMIC_CMP_AND_SWP, 'fetch-and-add': e.IBV_WR_ATOMIC_FETCH_AND_ADD}
STATES = {e.IBV_QPS_RESET: 'RESET', e.IBV_QPS_INIT: 'INIT', e.IBV_QPS_RTR: 'RTR', e.IBV_QPS_RTS: 'RTS', e.IBV_QPS_SQD: 'SQD',
          e.IBV_QPS_SQE: 'SQE', e.IBV_QPS_ERR: 'ERR'}
# rdma_rxe hands on the kernel's bit (IB_WC_WITH_INVALIDATE, rdma/ib_verbs.h), which is another one than that of libibverbs
# (IBV_WC_WITH_INV, infiniband/verbs.h).
WITH_INVALIDATE = 1 << 2 | e.IBV_WC_WITH_INV
RECEIVE = 1 << 32  # in the ID of a receive; completions with an error have no opcode


def packed(address):
    return socket.inet_pton(socket.AF_INET6, address if ':' in address else '::ffff:' + address)


def gid_index(device, address):
    """The RoCEv2 GID of the address. The table follows the network device with a delay."""
    for _ in range(50):
        for i in range(64):
            port = f'/sys/class/infiniband/{device}/ports/1'
            try:
                gid = open(f'{port}/gids/{i}').read().strip().replace(':', '')
                if gid == packed(address).hex() and 'v2' in open(f'{port}/gid_attrs/types/{i}').read():
                    return i
            except OSError:
                continue
        time.sleep(0.1)
    raise RuntimeError(f'{device} has no GID {address}')


class Refused(Exception):
    """rdma_rxe says that it does not have it."""


class Peer:
    def __init__(self, pattern):
        with open(pattern, 'rb') as f:
            self.pattern = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        self.windows = []
        self.qp = self.cq = self.mr = None

    def open(self, c):
        self.name = c['device']
        self.context = Context(name=self.name)
        self.pd = PD(self.context)
        return {'information': 'rdma_rxe'}

    def create(self, c):
        self.special = c.get('special')
        if self.special:
            # enum ib_uverbs_device_cap_flags, rdma/ib_user_ioctl_verbs.h; since Linux 6.2
            capability = 1 << 38 if self.special == 'FLUSH' else 1 << 40
            if not self.context.query_device_ex().device_cap_flags_ex & capability:
                raise Refused(f'rdma_rxe of this kernel has no {self.special}')
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND
        for name in c.get('access') or []:
            access |= ACCESS[name]
        self.mr = MR(self.pd, c['length'], access)
        self.cq = CQ(self.context, 4 * DEPTH)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1, max_inline_data=8)
        if self.special:
            operations = e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_FLUSH
            init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, pd=self.pd, sq_sig_all=0,
                                comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, send_ops_flags=operations)
            self.qp = QPEx(self.context, init)
        else:
            self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))
        self.gid = gid_index(self.name, c['address'])
        self.psn = int(time.monotonic() * 1000003) & 0xffffff
        return {'endpoint': {'address': c['address'], 'qpn': self.qp.qp_num, 'psn': self.psn, 'addr': self.mr.buf, 'rkey': self.mr.rkey}}

    def connect(self, c):
        remote = c['remote']
        a = QPAttr(port_num=1)
        a.dest_qp_num, a.path_mtu = remote['qpn'], MTU[c['mtu']]
        a.max_rd_atomic = a.max_dest_rd_atomic = RD_ATOMIC
        a.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | ACCESS['read'] | ACCESS['write'] | ACCESS['atomic']
        if self.special:
            a.qp_access_flags |= ACCESS['flush']
        a.rq_psn, a.sq_psn = remote['psn'], self.psn
        a.min_rnr_timer, a.timeout, a.retry_cnt, a.rnr_retry = 12, ACK_TIMEOUT, c['retry'], c['rnr_retry']
        h = packed(remote['address']).hex()
        gid = GID(':'.join(h[i:i + 4] for i in range(0, 32, 4)))
        a.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=self.gid, hop_limit=64), is_global=1, port_num=1)
        self.qp.to_rts(a)

    def content(self, x):
        return bytes(x['length']) if x['from'] < 0 else self.pattern[x['from']:x['from'] + x['length']]

    def fill(self, c):
        for x in c['pieces']:
            self.mr.write(self.content(x), x['length'], x['at'])

    def check(self, c):
        for x in c['pieces']:
            if not x['length']:
                continue
            want, got = self.content(x), self.mr.read(x['length'], x['at'])
            if want != got:
                i = next(i for i in range(len(want)) if want[i] != got[i])
                raise RuntimeError(f'byte {x["at"] + i} of the region is {got[i]:#04x} instead of {want[i]:#04x}')

    def receive(self, c):
        for i, s in enumerate(c['slots']):
            self.qp.post_recv(RecvWR(wr_id=RECEIVE + i, num_sge=1, sg=[SGE(self.mr.buf + s['at'], s['length'], self.mr.lkey)]))

    def window(self, c):
        keys = []
        for s in c['slots']:
            w = MW(self.pd, e.IBV_MW_TYPE_2)
            self.windows.append(w)
            wr = SendWR(opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
            wr.set_bind_wr(w, MWBindInfo(self.mr, self.mr.buf + s['at'], s['length'], ACCESS['write'] | ACCESS['read']))
            self.qp.post_send(wr)
            keys.append(wr.rkey)
        for done in self.wait({'count': len(keys), 'seconds': 20})['completions']:
            if done['status']:
                raise RuntimeError(f'bind window: status {done["status"]}')
        return {'keys': keys}

    def post(self, c):
        for i, r in enumerate(c['requests']):
            if self.special:
                self.post_special(i, r)
                continue
            sg = [SGE(self.mr.buf + r['at'], r['length'], self.mr.lkey)]  # pyverbs wants one, of no length if need be
            op = OPCODE[r['operation']]
            wr = SendWR(wr_id=i, opcode=op, num_sge=len(sg), sg=sg, send_flags=e.IBV_SEND_SIGNALED)
            if op in (e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
                wr.imm_data = socket.htonl(r['immediate'])
            elif op == e.IBV_WR_SEND_WITH_INV:
                wr.imm_data = r['invalidate']
            if op in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
                wr.set_wr_atomic(r['rkey'], r['addr'], r['compare_add'], r['swap'])
            elif op not in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_SEND_WITH_INV):
                wr.set_wr_rdma(r['rkey'], r['addr'])
            self.qp.post_send(wr)

    def post_special(self, i, r):
        self.qp.wr_start()
        self.qp.wr_id, self.qp.wr_flags = i, e.IBV_SEND_SIGNALED
        if r['operation'] == 'FLUSH':
            self.qp.wr_flush(r['rkey'], r['addr'], r['length'], e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE)
        else:
            self.qp.wr_atomic_write(r['rkey'], r['addr'], self.mr.read(8, r['at']))
        self.qp.wr_complete()

    def wait(self, c):
        done, end = [], time.monotonic() + c['seconds']
        while len(done) < c['count']:
            n, wcs = self.cq.poll(c['count'] - len(done))
            for w in wcs if n else []:
                x = {'receive': w.wr_id >= RECEIVE, 'place': w.wr_id & 0xffffffff, 'status': w.status, 'length': w.byte_len}
                if w.status == 0 and w.wc_flags & e.IBV_WC_WITH_IMM:
                    x['immediate'] = socket.ntohl(w.imm_data & 0xffffffff)
                elif w.status == 0 and w.wc_flags & WITH_INVALIDATE:
                    x['invalidated'] = w.imm_data & 0xffffffff
                done.append(x)
            if not n:
                if time.monotonic() > end:
                    return {'completions': done, 'error': f'{len(done)} of {c["count"]} completions after {c["seconds"]} s'}
                time.sleep(0.0005)
        return {'completions': done}

    def load(self, c):
        return {'word': int.from_bytes(self.mr.read(8, c['at']), sys.byteorder)}

    def state(self, c):
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return {'state': STATES[attr.qp_state]}

    def counters(self, c):
        import os
        folder, found = f'/sys/class/infiniband/{self.name}/ports/1/hw_counters', {}
        for name in os.listdir(folder):
            if name != 'lifespan' and (n := int(open(f'{folder}/{name}').read())):
                found[name] = n
        return {'counters': found}

    def destroy(self, c):
        # Windows go before the region beneath them.
        for o in [self.qp, *self.windows, self.mr, self.cq]:
            if o is not None:
                o.close()
        self.qp = self.cq = self.mr = None
        self.windows = []


def main():
    peer = Peer(sys.argv[1])
    for line in sys.stdin:
        c = json.loads(line)
        try:
            a = getattr(peer, c['do'])(c) or {}
        except Exception as x:
            refused = isinstance(x, Refused) or isinstance(x, PyverbsRDMAError) and getattr(x, 'error_code', None) in (errno.EOPNOTSUPP, errno.ENOSYS)
            a = {'error': f'{type(x).__name__}: {x}'.strip(), 'refused': refused}
        print(json.dumps(a), flush=True)


main()
