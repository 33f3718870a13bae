package memory

import "testing"

// BenchmarkWrite shows what check, announcement and fault protection cost beside the copy itself (BenchmarkCopy).
func BenchmarkWrite(b *testing.B) {
	table, domain := NewTable(1), new(Domain)
	region, err := table.Register(domain, make([]byte, 4096), 0, LocalWrite|RemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	user, p := table.NewUser(), &Principal{Domain: domain}
	data := [][]byte{make([]byte, 1024)}
	r := Range{Key: region.Key(), Length: 1024}
	b.ReportAllocs()
	for b.Loop() {
		user.Write(p, RemoteWrite, r, data, false)
	}
}

func BenchmarkCopy(b *testing.B) {
	into, data := make([]byte, 4096), make([]byte, 1024)
	for b.Loop() {
		copy(into, data)
	}
}

// BenchmarkLoad is what a program pays that waits for a word.
func BenchmarkLoad(b *testing.B) {
	region, err := NewTable(1).Register(new(Domain), aligned(8, 0), 0, LocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, fault := region.LoadUint64(0); fault != FaultNone {
			b.Fatal(fault)
		}
	}
}
