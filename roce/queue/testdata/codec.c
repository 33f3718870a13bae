/* A client in C: posts a WRITE and an inline SEND, and a receive, and prints the completions that it polls. Its rings are in the
 * memory of descriptor 3 at the offsets that the arguments name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "xroce_ring.h"

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "line %d: %s\n", __LINE__, #x); exit(1); } } while (0)

int main(int argc, char **argv)
{
	unsigned char *memory;
	struct xroce_end send, recv, cq;
	struct xroce_send_wqe *w;
	struct xroce_recv_wqe *r;
	struct xroce_sge *e;
	uint32_t polled = 0;

	CHECK(argc == 5);
	memory = mmap(NULL, strtoul(argv[4], NULL, 0), PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	CHECK(memory != MAP_FAILED);
	CHECK(xroce_attach_producer(&send, memory + atoi(argv[1]), 2, 64 + 2 * 16) == 0);
	CHECK(xroce_attach_producer(&send, memory + atoi(argv[1]), 3, 64 + 2 * 16) == -1);
	CHECK(xroce_attach_producer(&send, memory + atoi(argv[1]), 2, 64 + 2 * 16) == 0);
	CHECK(xroce_attach_producer(&recv, memory + atoi(argv[2]), 3, 16 + 16) == 0);
	CHECK(xroce_attach_consumer(&cq, memory + atoi(argv[3]), 5, 64) == 0);
	CHECK(xroce_state(&send) == 3);

	CHECK(xroce_free(&send) == 2);
	w = xroce_slot(&send, 0);
	memset(w, 0, sizeof(*w));
	w->wr_id = 0x1122334455667788;
	w->opcode = 1;
	w->flags = 2;
	w->count = 2;
	w->imm_data = 0xAABBCCDD;
	w->remote_addr = 0x7000;
	w->rkey = 0x4242;
	e = (struct xroce_sge *)(w + 1);
	e[0].addr = 0x1000, e[0].length = 100, e[0].lkey = 0x31;
	e[1].addr = 0x2000, e[1].length = 200, e[1].lkey = 0x32;
	w = xroce_slot(&send, 1);
	memset(w, 0, sizeof(*w));
	w->wr_id = 2;
	w->opcode = 2;
	w->flags = 8;
	w->count = 5;
	memcpy(w + 1, "hello", 5);
	xroce_publish(&send, 2);
	CHECK(xroce_free(&send) == 0);

	CHECK(xroce_free(&recv) == 3);
	r = xroce_slot(&recv, 0);
	memset(r, 0, sizeof(*r));
	r->wr_id = 77;
	r->count = 1;
	e = (struct xroce_sge *)(r + 1);
	e->addr = 0x9000, e->length = 4096, e->lkey = 0x99;
	xroce_publish(&recv, 1);

	xroce_arm(&cq, 1);
	CHECK(cq.ring->arm == 1);
	xroce_arm(&cq, 0);
	xroce_arm(&cq, 1);
	CHECK(cq.ring->arm == 2);
	while (xroce_available(&cq) > 0) {
		struct xroce_cqe *c = xroce_slot(&cq, 0);

		printf("%llx %u %u %x %u %x %x %x %llx %x %x %u %u\n", (unsigned long long)c->wr_id, c->status, c->opcode, c->wc_flags,
		       c->byte_len, c->imm_data, c->qp_num, c->psn, (unsigned long long)c->completion_ts, c->vendor_err, c->syndrome,
		       c->retries, c->rnr_retries);
		xroce_release(&cq, 1);
		polled++;
	}
	CHECK(polled == 4);
	return 0;
}
