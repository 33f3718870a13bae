package main

import "github.com/xroce/xroce/verbs"

// pingpongTerms is what the two ends tell each other first. Both compare, and come to the same result.
type pingpongTerms struct {
	Program  string         `json:"program"`
	Endpoint verbs.Endpoint `json:"endpoint"`
	Size     int            `json:"size"`    // bytes
	Iters    int            `json:"iters"`   // round trips
	PathMTU  int            `json:"pathMTU"` // bytes that are asked for, 0 for as many as both carry
	Check    bool           `json:"check"`
}

const pingpongProgram = "xroce pingpong"

func (c *pingpongCommand) terms(local verbs.Endpoint) *pingpongTerms {
	return &pingpongTerms{
		Program: pingpongProgram, Endpoint: local, Size: c.Size, Iters: c.Iters, PathMTU: c.MTU, Check: c.Check,
	}
}

// differ says in which terms the ends differ, in the flags of the command line.
func (t *pingpongTerms) differ(other *pingpongTerms) error {
	for _, number := range []struct {
		flag        string
		here, there int
	}{{"-s", t.Size, other.Size}, {"-n", t.Iters, other.Iters}} {
		if number.here != number.there {
			return usage("%s is %d here and %d at the other end", number.flag, number.here, number.there)
		}
	}
	here, there := t.Endpoint.MTU.Bytes(), other.Endpoint.MTU.Bytes()
	switch {
	case t.Check && !other.Check:
		return usage("-c is given here and not at the other end")
	case other.Check && !t.Check:
		return usage("-c is given at the other end and not here")
	case t.PathMTU != 0 && other.PathMTU != 0 && t.PathMTU != other.PathMTU:
		return usage("-m is %d here and %d at the other end", t.PathMTU, other.PathMTU)
	case t.PathMTU > there:
		return usage("-m is %d here, and the other end carries only %d", t.PathMTU, there)
	case other.PathMTU > here:
		return usage("-m is %d at the other end, and this one carries only %d", other.PathMTU, here)
	}
	return nil
}

func (t *pingpongTerms) program() string { return t.Program }
