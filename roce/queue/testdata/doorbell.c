/* Two threads ring doorbells in the memory of descriptor 3, and wake the engine by the eventfd of descriptor 4. Each waits until its
 * last ring has been answered, so one that is lost ends the test. */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "xroce_ring.h"

struct turns {
	struct { uint32_t posted, slot; uint8_t rest[56]; uint32_t answered; uint8_t more[60]; } ringer[2];
};

static struct xroce_doorbells *doorbells;
static struct turns *turns;
static uint32_t rings;

static void *ringer(void *argument)
{
	uintptr_t i = (uintptr_t)argument;
	const uint64_t one = 1;

	for (uint32_t n = 1; n <= rings; n++) {
		__atomic_store_n(&turns->ringer[i].posted, n, __ATOMIC_RELEASE);
		if (xroce_ring_doorbell(doorbells, turns->ringer[i].slot) && write(4, &one, sizeof(one)) != sizeof(one))
			exit(2);
		for (int spin = 0; __atomic_load_n(&turns->ringer[i].answered, __ATOMIC_ACQUIRE) != n; spin++)
			if (spin % 64 == 63)
				sched_yield();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	pthread_t threads[2];

	if (memory == MAP_FAILED || argc != 2)
		return 3;
	rings = (uint32_t)strtoul(argv[1], NULL, 0);
	doorbells = (struct xroce_doorbells *)memory;
	turns = (struct turns *)(memory + 4096);
	for (uintptr_t i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, ringer, (void *)i))
			return 4;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
