// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package torchcaps knows what the gloo backend of each version of PyTorch can do. It does no I/O.
//
// The wire has not changed since 2023 and does not carry a version; what differs is what PyTorch allows. A [Level] is a
// range of versions that allow the same operations. Often the peers' level is known only as a range. An operation then
// runs if all levels of the range run it the same way, and is refused otherwise, because some level would compute
// something else or wait for ever.
package torchcaps

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// Level is a range of versions of PyTorch whose gloo backends allow the same.
type Level uint8

// The levels, oldest first.
const (
	none  Level = iota // all ranks are Go: everything works
	V1_13              // 1.13 to 2.2
	V2_6               // 2.3 to 2.7
	V2_8               // 2.8: average, reduce_scatter of lists, torch's own float16
	V2_9               // 2.9: reduce_scatter with any operator, complex numbers
	V2_10              // 2.10: another order of the groups of a device mesh
	V2_11              // 2.11: sparse tensors of complex numbers are exchanged, to no effect
	V2_12              // 2.12 and 2.13: all_to_all of lists
	V2_14              // 2.14: other names of groups that are made with local synchronization
)

// Newest is the newest level that is known. Newer versions are treated alike.
const Newest = V2_14

// firsts are the first versions of the levels.
var firsts = [...][2]int{
	V1_13: {1, 13}, V2_6: {2, 3}, V2_8: {2, 8}, V2_9: {2, 9}, V2_10: {2, 10}, V2_11: {2, 11}, V2_12: {2, 12},
	V2_14: {2, 14},
}

// newestMinor is the newest version of PyTorch that the table was read off.
const newestMinor = 14

// String returns the level as it is given in options: "torch-2.9".
func (l Level) String() string {
	return [...]string{"go", "torch-1.13", "torch-2.6", "torch-2.8", "torch-2.9", "torch-2.10", "torch-2.11", "torch-2.12", "torch-2.14"}[l]
}

// Parse returns the level of a version such as "torch-2.11", "2.11.0+cpu" or "2.11". newer: the version is newer than any
// that is known.
func Parse(version string) (l Level, newer, ok bool) {
	version = strings.TrimPrefix(strings.TrimSpace(version), "torch-")
	majorText, rest, _ := strings.Cut(version, ".")
	minorText, _, _ := strings.Cut(rest, ".")
	if i := strings.IndexFunc(minorText, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		minorText = minorText[:i]
	}
	major, err := strconv.Atoi(majorText)
	minor, err2 := strconv.Atoi(minorText)
	if err != nil || err2 != nil {
		return none, false, false
	}
	for at, first := range firsts {
		if at != int(none) && (major > first[0] || major == first[0] && minor >= first[1]) {
			l = Level(at)
		}
	}
	return l, major > 2 || major == 2 && minor > newestMinor, l != none
}

// Peers is what is known about the PyTorch ranks of a group: that their level is one from Low to High. The zero value means that
// there are none.
type Peers struct {
	Low, High Level
	Several   bool // there are ranks of both, and this is all that there is to know
	// Assumed: this is known of one process only, the host of the store: other ranks are taken to be alike where a mistake shows as
	// an error.
	Assumed bool
}

// Exactly is a known level.
func Exactly(l Level) Peers { return Peers{Low: l, High: l} }

// ParsePeers returns the peers of a version, or of the versions of ranks that are in one group, separated by commas:
// "torch-2.6,torch-2.14". newer: one is newer than any that is known.
func ParsePeers(versions string) (p Peers, newer, ok bool) {
	for version := range strings.SplitSeq(versions, ",") {
		l, isNewer, ok := Parse(version)
		switch {
		case !ok:
			return Peers{}, false, false
		case p.None():
			p = Exactly(l)
		}
		p.Low, p.High, newer = min(p.Low, l), max(p.High, l), newer || isNewer
	}
	p.Several = p.Low != p.High
	return p, newer, true
}

// None reports whether all ranks are Go.
func (p Peers) None() bool { return p.High == none }

// AtLeast narrows what is known by a lower bound.
func (p Peers) AtLeast(l Level) Peers { return Peers{Low: max(p.Low, min(l, p.High)), High: p.High} }

// AtMost narrows what is known by an upper bound.
func (p Peers) AtMost(l Level) Peers { return Peers{Low: p.Low, High: min(p.High, max(l, p.Low))} }

// String names the versions.
func (p Peers) String() string {
	name := func(l Level, last bool) string {
		switch {
		case l == V1_13:
			return "1.13"
		case l == V2_6 && last:
			return "2.7"
		case l == V2_6:
			return "2.6"
		}
		return strings.TrimPrefix(l.String(), "torch-")
	}
	switch {
	case p.None():
		return "Go"
	case p.Low == p.High:
		return "PyTorch " + name(p.Low, false)
	case p.Several:
		return "PyTorch " + name(p.Low, false) + " and " + name(p.High, false)
	case p.High == Newest:
		return "PyTorch " + name(p.Low, false) + " or newer"
	}
	return "PyTorch " + name(p.Low, false) + " to " + name(p.High, true)
}

// Unsure reports why something that depends on the version is refused, and what can be done.
func (p Peers) Unsure() string {
	if p.Several {
		return fmt.Sprintf("and the other ranks use %v, which do not agree", p)
	}
	if p.Assumed {
		return fmt.Sprintf(
			"and all that is known is that the process that hosts the store uses %v: say what all ranks use with %s (%q) or the "+
				"variable %s (2.14)", p, Option, p.High.String(), Variable)
	}
	return fmt.Sprintf("and all that is known is that other ranks use %v: say which with %s (%q) or the variable %s (2.14)", p,
		Option, p.High.String(), Variable)
}

// Explain adds to the error of a collective what most likely led to it, if PyTorch ranks can: they raise a separate error and report
// nothing to the others, who lose them or wait. That a build of PyTorch has no half types cannot be known before.
func (p Peers) Explain(dt tensor.DType, message bool, err error) error {
	e, ok := errors.AsType[*cohort.Error](err)
	if !ok || message || p.None() || e.Code != cohort.PeerLost && e.Code != cohort.DeadlineExceeded {
		return err
	}
	why := "a PyTorch rank that has raised an error in an operation, or did not call it, takes no part in it: see what the PyTorch " +
		"ranks say"
	switch {
	case (dt == tensor.Float16 || dt == tensor.BFloat16) && p.High >= V2_8:
		why = "a PyTorch rank whose build has no half types in gloo, as Debian's after 2.6, raises an error for " + dt.String() +
			`, "Invalid scalar type": convert the tensor`
	case e.Code == cohort.PeerLost:
		return err
	}
	return fmt.Errorf("%w; %s", err, why)
}

// Rows lists the groups of a device mesh with these sizes, for each dimension in the order in which all ranks make them; nil where
// the world's own group serves.
func (order meshOrder) Rows(mesh []int) [][][]cohort.Rank {
	world := 1
	for _, n := range mesh {
		world *= n
	}
	all := make([][][]cohort.Rank, len(mesh))
	for d, size := range mesh {
		// PyTorch takes the default group for a mesh of one dimension, and in 2.14 for any dimension that all ranks are in.
		if size == world && (order == FirstFirst || len(mesh) == 1) {
			continue
		}
		// The sizes and the strides of the other dimensions, the slowest first.
		var sizes, strides []int
		stride, own := world, 0
		for i, n := range mesh {
			stride /= n
			if i == d {
				own = stride
			}
			sizes, strides = append(sizes, n), append(strides, stride)
		}
		if order == LastFirst { // the dimension changes places with the last one
			end := len(sizes) - 1
			sizes[d], sizes[end] = sizes[end], sizes[d]
			strides[d], strides[end] = strides[end], strides[d]
			sizes, strides = sizes[:end], strides[:end]
		} else {
			sizes, strides = slices.Delete(sizes, d, d+1), slices.Delete(strides, d, d+1)
		}
		for i := range world / size {
			start := 0
			for k, n := range slices.Backward(sizes) {
				start += i % n * strides[k]
				i /= n
			}
			row := make([]cohort.Rank, size)
			for j := range row {
				row[j] = cohort.Rank(start + j*own)
			}
			all[d] = append(all[d], row)
		}
	}
	return all
}
