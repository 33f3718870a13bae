// Ringgen writes what both ends of a ring have to agree on, from one table: roce/queue/layout_generated.go for Go and
// roce/queue/xroce_ring.h for C. "go generate ./roce/queue" runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// outputs are the generated files by name.
func outputs() (map[string][]byte, error) {
	if err := check(table); err != nil {
		return nil, err
	}
	source, err := goSource(table)
	return map[string][]byte{"layout_generated.go": source, "xroce_ring.h": cHeader(table)}, err
}

// check says what is wrong with a table: records whose fields overlap, are not aligned or reach beyond the end.
func check(table []record) error {
	for _, r := range table {
		end := 0
		for _, f := range r.fields {
			switch {
			case f.size != 1 && f.size != 2 && f.size != 4 && f.size != 8:
				return fmt.Errorf("%s.%s: %d bytes are not a number", r.c, f.c, f.size)
			case f.offset%f.size != 0:
				return fmt.Errorf("%s.%s: offset %d is not a multiple of %d", r.c, f.c, f.offset, f.size)
			case f.offset < end:
				return fmt.Errorf("%s.%s: offset %d lies before %d, where the last field ends", r.c, f.c, f.offset, end)
			}
			end = f.offset + f.length()
		}
		if end > r.size || r.size%8 != 0 {
			return fmt.Errorf("%s: %d bytes, the fields take %d", r.c, r.size, end)
		}
	}
	return nil
}

// length is the field's length in bytes.
func (f *field) length() int { return f.size * max(f.count, 1) }

func main() {
	folder := flag.String("folder", ".", "where the files are written")
	flag.Parse()
	files, err := outputs()
	for name, content := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(*folder, name), content, 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ringgen:", err)
		os.Exit(1)
	}
}
