//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// cell is what was measured with one mode and one path MTU.
type cell struct {
	Mode      string   `json:"mode"`
	PathMTU   int      `json:"pathMTU"`
	NetdevMTU int      `json:"netdevMTU"`
	XDPMode   string   `json:"xdpMode,omitempty"` // that the device obtained
	Skipped   string   `json:"skipped,omitempty"` // why there is no measurement by verbs
	Void      []string `json:"void,omitempty"`    // why the ratios say nothing
	Repeated  []string `json:"repeated,omitempty"`
	Lines     []line   `json:"measurements"`
}

// line is one measurement of a cell, over all rounds.
type line struct {
	Name string    `json:"name"`
	Unit string    `json:"unit"` // Gbit/s of payload, or us of a round trip (the median of a run)
	Runs []float64 `json:"runs"` // one per round
	quartiles
	// Megapackets are packets of a full payload per second, in millions: of the median, without the answers, and not
	// of TCP.
	Megapackets float64 `json:"megapacketsPerSecond,omitempty"`
	// Ratios to other measurements, of the ratios within each round.
	Ratios map[string]quartiles `json:"ratios,omitempty"`
}

// comparedWith is what a measurement is divided by.
func comparedWith(what string) []string {
	switch what {
	case write, send, read:
		return []string{raw, rawWork, tcp, what + beside}
	case short:
		return []string{what + beside}
	case rawWork, tcp:
		return []string{raw}
	case pingPong:
		return []string{rawPingPong, what + beside}
	}
	return nil
}

// measureCell runs all rounds of a cell. Each begins with another measurement.
func (c *runCommand) measureCell(ctx context.Context, mode string, mtu int) (result cell, err error) {
	l, err := c.newLab(mode, mtu)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	result = cell{Mode: mode, PathMTU: mtu, NetdevMTU: l.netdevMTU}
	runs := map[string][]float64{}
	plan := c.plan()
	for round := range c.Pairs {
		fmt.Fprintf(os.Stderr, "%s, path MTU %d: round %d of %d\n", mode, mtu, round+1, c.Pairs)
		for i := range plan {
			what := plan[(i+round)%len(plan)]
			if result.Skipped != "" && isVerbs(what) {
				continue
			}
			s, failures := l.measure(ctx, what)
			if ctx.Err() != nil {
				return result, context.Cause(ctx)
			}
			if len(failures) == attempts {
				return result, errors.Join(failures...)
			}
			for _, f := range failures {
				result.Repeated = append(result.Repeated, f.Error())
			}
			if s.XDPMode != "" {
				result.XDPMode = s.XDPMode
			}
			if s.Skipped != "" {
				result.Skipped = s.Skipped
				continue
			}
			runs[what] = append(runs[what], s.value())
		}
	}
	result.summarize(plan, runs)
	return result, nil
}

// maximumSpread is the ratio of the upper to the lower quartile of the raw runs above which the machine was too busy
// with something else.
const maximumSpread = 1.5

// maximumShare of raw is 1, and something for chance.
const maximumShare = 1.1

func (c *cell) summarize(plan []string, runs map[string][]float64) {
	for _, what := range plan {
		values := runs[what]
		if len(values) == 0 {
			continue
		}
		unit, payload := "Gbit/s", c.PathMTU
		switch {
		case isPingPong(what):
			unit = "us"
		case strings.TrimSuffix(what, beside) == short:
			payload = shortSize
		}
		l := line{Name: what, Unit: unit, Runs: values, quartiles: quartilesOf(values)}
		if !isPingPong(what) && what != tcp {
			l.Megapackets = l.Median * 1e3 / 8 / float64(payload)
		}
		for _, other := range comparedWith(what) {
			if len(runs[other]) == 0 {
				continue
			}
			if l.Ratios == nil {
				l.Ratios = map[string]quartiles{}
			}
			l.Ratios[other] = quartilesOf(ratios(values, runs[other]))
		}
		if spread := l.Upper / l.Lower; (what == raw || what == rawPingPong) && spread > maximumSpread {
			c.Void = append(c.Void,
				fmt.Sprintf("the quartiles of %s are %.2f apart, more than %.1f", what, spread, maximumSpread))
		}
		// A ceiling that is lower than what is below it was not reached: it has one thread per end, and the verbs
		// have others that take over when it is not let onto its CPU.
		if share := l.Ratios[raw].Median; isVerbs(what) && share > maximumShare {
			c.Void = append(c.Void, fmt.Sprintf("%s is %.2f of raw, which should be more than it", what, share))
		}
		c.Lines = append(c.Lines, l)
	}
}

// quartiles of a number of values.
type quartiles struct {
	Lower  float64 `json:"lowerQuartile"`
	Median float64 `json:"median"`
	Upper  float64 `json:"upperQuartile"`
}

func quartilesOf(values []float64) quartiles {
	sorted := slices.Sorted(slices.Values(values))
	return quartiles{quantile(sorted, 0.25), quantile(sorted, 0.5), quantile(sorted, 0.75)}
}

// quantile interpolates between the two values next to it (the usual definition, type 7 of Hyndman and Fan).
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// ratios divides what belongs to the same round.
func ratios(values, by []float64) (r []float64) {
	for i, v := range values {
		r = append(r, v/by[i])
	}
	return r
}
