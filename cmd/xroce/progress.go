package main

import (
	"fmt"
	"io"
	"os"
)

// progress tells what is going on: in one line that is rewritten on a terminal, in a line for each stage elsewhere. It
// belongs to one goroutine.
type progress struct {
	out      io.Writer
	terminal bool
	stage    string
	shown    bool // a line is on the terminal that has to be cleared
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// begin begins a stage.
func (p *progress) begin(stage string) {
	p.stage = stage
	if p.terminal {
		p.rewrite(stage + " ...")
		return
	}
	fmt.Fprintln(p.out, stage)
}

// update says how much of the stage is done. It is shown on a terminal only.
func (p *progress) update(done, total uint64) {
	if p.terminal && total > 0 {
		p.rewrite(fmt.Sprintf("%s ... %3d %%", p.stage, done*100/total))
	}
}

func (p *progress) rewrite(text string) {
	const startAndClearLine = "\r\x1b[K"
	fmt.Fprint(p.out, startAndClearLine+text)
	p.shown = true
}

// end leaves the terminal's line empty for what comes next.
func (p *progress) end() {
	if p.shown {
		p.rewrite("")
		p.shown = false
	}
}

// show tells how far something is, 0 to 1, on a terminal only.
func (p *progress) show(what string, done float64) {
	if p.terminal {
		p.rewrite(fmt.Sprintf("%s ... %3.0f %%", what, done*100))
	}
}
