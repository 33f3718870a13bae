/*
 * A client of the engine in a process of its own, in C: all that it has of the engine is xroce_ring.h, a memfd (descriptor 3), the
 * eventfd of the doorbells (4) and that of its CQ (5). Addresses are offsets in the memfd.
 *
 * It writes pieces of a pattern to the peer, reads them back into another place, and looks whether they are the same: "client rounds" for
 * so many pieces, "client 0" until it is killed. Before each wait it polls for a while, or not: then it sleeps on the eventfd.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "xroce_ring.h"

enum { RDMA_WRITE = 0, RDMA_READ = 4, SIGNALED = 2, FENCE = 1 }; /* of <infiniband/verbs.h> */
enum { STATE_RTS = 3 };

/* What the engine's side tells, in the order of the arguments. */
static struct {
	uint64_t rounds, size, doorbells, slot, send_at, send_wr, max_sge, cq_at, cqe, data_at, data_length, lkey, remote_addr, rkey;
} told;

static unsigned char *memory;
static struct xroce_doorbells *doorbells;
static struct xroce_end send_queue, completions;
static uint64_t sleeps, rings, wakes;

#define FAIL(...) do { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } while (0)

static void post(uint8_t opcode, uint8_t flags, uint64_t id, uint64_t local, uint32_t length, uint64_t remote)
{
	struct xroce_send_wqe *w = xroce_slot(&send_queue, 0);
	struct xroce_sge *list = (struct xroce_sge *)(w + 1);
	uint32_t half = length / 2;

	memset(w, 0, sizeof(*w));
	w->wr_id = id;
	w->opcode = opcode;
	w->flags = flags;
	w->remote_addr = remote;
	w->rkey = (uint32_t)told.rkey;
	/* Two elements, of which the first may be empty. */
	w->count = 2;
	list[0].addr = local, list[0].length = half, list[0].lkey = (uint32_t)told.lkey;
	list[1].addr = local + half, list[1].length = length - half, list[1].lkey = (uint32_t)told.lkey;
	xroce_publish(&send_queue, 1);
	rings++;
	if (xroce_ring_doorbell(doorbells, (uint32_t)told.slot)) {
		const uint64_t one = 1;

		wakes++;
		if (write(4, &one, sizeof(one)) != sizeof(one) && errno != EAGAIN)
			FAIL("write to the doorbell: %s", strerror(errno));
	}
}

static void sleep_on_eventfd(void)
{
	struct pollfd fd = { .fd = 5, .events = POLLIN };
	uint64_t count;

	xroce_arm(&completions, 0);
	if (xroce_available(&completions) > 0)
		return;
	sleeps++;
	if (poll(&fd, 1, 20000) != 1)
		FAIL("no notification for 20 seconds; state of the QP %u", xroce_state(&send_queue));
	if (read(5, &count, sizeof(count)) != sizeof(count) && errno != EAGAIN)
		FAIL("read of the eventfd: %s", strerror(errno));
}

/* Waits for the completion of a request and returns its length. */
static uint32_t wait_for(uint64_t id, int spin)
{
	struct xroce_cqe *c;
	uint32_t length;

	while (xroce_available(&completions) == 0) {
		if (spin > 0)
			spin--;
		else
			sleep_on_eventfd();
	}
	c = xroce_slot(&completions, 0);
	if (c->status != 0 || c->wr_id != id)
		FAIL("completion of %llu: status %u, opcode %u, vendor error %u; expected one of %llu", (unsigned long long)c->wr_id,
		     c->status, c->opcode, c->vendor_err, (unsigned long long)id);
	length = c->byte_len;
	xroce_release(&completions, 1);
	return length;
}

static uint64_t random_state = 88172645463325252u;

static uint64_t draw(uint64_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % below;
}

/* One piece there and back again. */
static void round_trip(uint64_t round)
{
	uint64_t half = told.data_length / 2, length = 1 + draw(round % 8 ? 5000 : half), offset = draw(half - length + 1);
	unsigned char *from = memory + told.data_at, *into = from + half;
	int spin = round % 3 == 0 ? 0 : 20000;

	for (uint64_t i = 0; i < length; i++)
		from[offset + i] = (unsigned char)(round * 131 + i * 7 + i / 256);
	memset(into + offset, 0xEE, length);
	if (xroce_free(&send_queue) < 2)
		FAIL("the send queue is full");
	post(RDMA_WRITE, round % 2 ? SIGNALED : 0, 2 * round, told.data_at + offset, (uint32_t)length, told.remote_addr + offset);
	post(RDMA_READ, SIGNALED, 2 * round + 1, told.data_at + half + offset, (uint32_t)length, told.remote_addr + offset);
	if (round % 2)
		wait_for(2 * round, spin);
	if (wait_for(2 * round + 1, spin) != length)
		FAIL("round %llu: the READ has another length", (unsigned long long)round);
	if (memcmp(from + offset, into + offset, length) != 0)
		FAIL("round %llu: other bytes came back", (unsigned long long)round);
}

int main(int argc, char **argv)
{
	uint64_t *values = (uint64_t *)&told;
	uint32_t stride;

	if (argc != 1 + (int)(sizeof(told) / sizeof(*values)))
		FAIL("%d arguments", argc);
	for (int i = 1; i < argc; i++)
		values[i - 1] = strtoull(argv[i], NULL, 0);
	memory = mmap(NULL, told.size, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (memory == MAP_FAILED)
		FAIL("mmap: %s", strerror(errno));
	doorbells = (struct xroce_doorbells *)(memory + told.doorbells);
	stride = (uint32_t)(sizeof(struct xroce_send_wqe) + told.max_sge * sizeof(struct xroce_sge));
	if (xroce_attach_producer(&send_queue, memory + told.send_at, (uint32_t)told.send_wr, stride) ||
	    xroce_attach_consumer(&completions, memory + told.cq_at, (uint32_t)told.cqe, sizeof(struct xroce_cqe)))
		FAIL("the rings have another layout");
	if (xroce_state(&send_queue) != STATE_RTS)
		FAIL("the QP is in state %u", xroce_state(&send_queue));
	for (uint64_t round = 0; told.rounds == 0 || round < told.rounds; round++) {
		round_trip(round);
		if (round == 0) {
			puts("running");
			fflush(stdout);
		}
	}
	printf("%llu rings, %llu woke the engine, %llu sleeps\n", (unsigned long long)rings, (unsigned long long)wakes,
	       (unsigned long long)sleeps);
	return 0;
}
