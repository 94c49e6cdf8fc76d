// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/monitoredbarrier"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/tensor"
)

// Wrapper is the helper group that PyTorch puts beside a group with TORCH_DISTRIBUTED_DEBUG=DETAIL: before each collective
// all ranks meet there in a monitored barrier and compare fingerprints. It corresponds to c10d's ProcessGroupWrapper.
//
// One check runs at a time.
type Wrapper struct {
	layout Layout
	mesh   transport.Mesh
	engine *Engine
	tag    uint32
}

// NewWrapper returns a wrapper over the helper group's mesh.
func NewWrapper(l Layout, mesh transport.Mesh) *Wrapper {
	return &Wrapper{layout: l, mesh: mesh, engine: NewEngine(mesh)}
}

// Check sends the other ranks what this one is going to run and returns when all have sent the same. Ranks that differ get
// an error with the code [cohort.Mismatch], all of them, and the wrapper stays usable; any other error is the end of it.
// limit bounds each wait.
func (w *Wrapper) Check(ctx context.Context, own *Fingerprint, limit time.Duration) error {
	if err := w.meet(ctx, own, limit); err != nil {
		return err
	}
	words := own.Words(w.layout)
	// First the length, so that the second exchange has room for all words.
	length := []int64{int64(len(words))}
	lengths, err := w.gather(ctx, length, limit)
	if err != nil {
		return err
	}
	for r, theirs := range lengths {
		if theirs[0] != length[0] {
			return w.differ(own, r, "something with other numbers of tensors or dimensions ("+strconv.FormatInt(theirs[0], 10)+
				" words of fingerprint where this rank has "+strconv.Itoa(len(words))+")")
		}
	}
	all, err := w.gather(ctx, words, limit)
	if err != nil {
		return err
	}
	for r, theirs := range all {
		if slices.Equal(theirs, words) {
			continue
		}
		other, err := parseFingerprint(w.layout, theirs)
		if err != nil {
			return w.differ(own, r, "something whose fingerprint cannot be read: "+err.Error())
		}
		return w.differ(own, r, other.String())
	}
	return nil
}

// meet is the monitored barrier before the comparison.
func (w *Wrapper) meet(ctx context.Context, own *Fingerprint, limit time.Duration) error {
	tag := w.tag
	w.tag += 2
	barrier := monitoredbarrier.Barrier{Mesh: w.mesh, Report: uint64(tag), Release: uint64(tag + 1), Limit: limit, All: true}
	if err := barrier.Run(ctx); err != nil {
		e := cohort.Wrap("gloo: check before "+own.String(), cohort.PeerLost, err)
		w.mesh.Fail(e)
		return e
	}
	return nil
}

// gather collects the words of all ranks; all have the same number.
func (w *Wrapper) gather(ctx context.Context, words []int64, limit time.Duration) ([][]int64, error) {
	tag := w.tag
	w.tag++
	in := putWords(words)
	out := make([]byte, len(in)*w.mesh.Size())
	err := w.engine.Run(ctx, &collective.Request{Kind: collective.AllGather, Tag: tag, DType: tensor.Int64, In: in, Out: out, Timeout: limit})
	if err != nil {
		return nil, err
	}
	lists := make([][]int64, w.mesh.Size())
	for r := range lists {
		lists[r] = getWords(out[r*len(in) : (r+1)*len(in)])
	}
	return lists, nil
}

func (w *Wrapper) differ(own *Fingerprint, rank int, theirs string) error {
	return &cohort.Error{
		Op: "gloo: check before a collective", Code: cohort.Mismatch, Rank: cohort.Rank(rank),
		Detail: "rank " + strconv.Itoa(w.mesh.Rank()) + " runs " + own.String() + ", but rank " + strconv.Itoa(rank) + " runs " + theirs +
			"; all ranks must call the same operations in the same order",
	}
}

// Fail ends a check that runs, and the wrapper.
func (w *Wrapper) Fail(err error) { w.mesh.Fail(err) }

// Close leaves the helper group.
func (w *Wrapper) Close() error { return w.mesh.Close() }
