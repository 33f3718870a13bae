//go:build linux

package plan

import (
	"cmp"
	"strings"
)

// Rung is one choice of verbs.Options; the zero value is what they have by default. Native and generic mode take the
// rung with frags where kernel and driver give it, and no choice of options leaves it out.
type Rung struct {
	Mode        string `json:"mode,omitempty"`         // native, generic
	Copy        string `json:"copy,omitempty"`         // copy, zero
	MultiBuffer string `json:"multi_buffer,omitempty"` // on, off
}

func (r Rung) String() string {
	var parts []string
	for _, part := range []string{r.Mode, map[string]string{"copy": "copy", "zero": "zero copy"}[r.Copy], r.MultiBuffer} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if r.MultiBuffer != "" {
		parts[len(parts)-1] = "multi-buffer " + r.MultiBuffer
	}
	return cmp.Or(strings.Join(parts, ", "), "default")
}

// rungs are all choices, or the two that "make interop" takes.
func rungs(brief bool) (all []Rung) {
	all = []Rung{{}, {Mode: "generic"}}
	if brief {
		return all
	}
	for _, mode := range []string{"native", "generic"} {
		for _, copying := range []string{"copy", "zero"} {
			for _, multiBuffer := range []string{"on", "off"} {
				all = append(all, Rung{mode, copying, multiBuffer})
			}
		}
	}
	return all
}
