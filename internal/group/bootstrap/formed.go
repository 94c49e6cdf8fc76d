// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Formed is a group whose ranks are connected.
type Formed struct {
	Transport Transport
	Reason    string          // why this transport
	Layout    gloo.Layout     // how its PyTorch ranks name their keys
	Peers     torchcaps.Peers // what they can do; none without them
	Members   []member        // by rank
	Place     *assemble.Place // among the Go ranks in the store; nil in a group of one
	Base      string          // prefix of PyTorch's keys of it
	Failure   *Failure        // why the group ended, as all ranks report it
	Mesh      transport.Mesh
	Engine    collective.Engine
	Wrapper   *gloo.Wrapper // compares operations before they run; nil unless PyTorch ranks do

	// Narrow asks once more, for two seconds at most, what the PyTorch ranks can do. Its error is that of ctx; the end of the group only
	// ends it. It is nil where nothing more can be found out.
	Narrow func(ctx, group context.Context) (torchcaps.Peers, error)

	globals []int
	torch   torchVersion // how the PyTorch members meet; torchNone without them
	failure failure
}

// member is what is known about a rank.
type member struct {
	Go   bool
	Host string
	PID  int
	Addr string

	livenessListener string // where others see whether it is there; "" for a PyTorch rank
}

// failure passes the failure of a mesh on to the group, which is made later.
type failure struct {
	mu struct {
		sync.Mutex
		err    error
		notify func(error)
	}
}

// report is called by the mesh.
func (f *failure) report(err error) {
	failpoint.At("bootstrap.failure.report")
	f.mu.Lock()
	notify := f.mu.notify
	if f.mu.err == nil {
		f.mu.err = err
	}
	f.mu.Unlock()
	if notify != nil {
		notify(err)
	}
}

// OnFail has notify called when the mesh fails, at once if it has.
func (f *Formed) OnFail(notify func(error)) {
	failpoint.At("bootstrap.failure.notify")
	f.failure.mu.Lock()
	f.failure.mu.notify = notify
	err := f.failure.mu.err
	f.failure.mu.Unlock()
	if err != nil {
		notify(err)
	}
}

// Fail ends everything that runs on the group's connections.
func (f *Formed) Fail(err error) {
	f.Mesh.Fail(err)
	if f.Wrapper != nil {
		f.Wrapper.Fail(err)
	}
}

// Close closes the connections, and so ends what runs on them.
func (f *Formed) Close() error {
	err := f.Mesh.Close()
	if c, ok := f.Engine.(interface{ Close() error }); ok {
		if e := c.Close(); err == nil {
			err = e
		}
	}
	if f.Wrapper != nil {
		_ = f.Wrapper.Close()
	}
	return err
}

// GoRanks is how many members are Go processes.
func (f *Formed) GoRanks() int {
	n := 0
	for _, m := range f.Members {
		if m.Go {
			n++
		}
	}
	return n
}

// Blame returns what to report of a message that failed with err: the rank that went first, if its peer only followed.
func (f *Formed) Blame(err error) error {
	if w, ok := f.Mesh.(gloo.Watcher); ok {
		err = w.Blame(err)
	}
	if cohort.CodeOf(err) != cohort.PeerLost {
		return err // it ended alone: that does not end the group
	}
	return f.Failure.Judge(err)
}

// Explain adds to the error of an operation what most likely led to it, if PyTorch ranks can: they are not why a Go rank is gone.
func (f *Formed) Explain(dt tensor.DType, message bool, err error) error {
	if r := int(rankOf(err)); cohort.CodeOf(err) == cohort.PeerLost && r >= 0 && r < len(f.Members) && f.Members[r].Go {
		return err
	}
	return f.Peers.Explain(dt, message, err)
}

// Unconnected returns a group that waits for its first reconfiguration.
func Unconnected(p *Plan) *Formed {
	f := &Formed{
		Transport: p.Transport, Layout: gloo.Torch26, Members: make([]member, p.size()), globals: p.Globals, Base: p.base(gloo.Torch26),
		Failure: &Failure{store: p.Store, rank: p.Rank},
	}
	f.single()
	return f
}

// single makes it a group without peers.
func (f *Formed) single() {
	f.Mesh = singleRankMesh{}
	f.Engine = native.NewEngine(f.Mesh, native.Tuning{})
}

// singleRankMesh is the mesh of a group with one rank, which has no peers.
type singleRankMesh struct{}

func (singleRankMesh) Rank() int             { return 0 }
func (singleRankMesh) Size() int             { return 1 }
func (singleRankMesh) Send(op *transport.Op) { op.Begin(); op.Complete(errAlone()) }

func (singleRankMesh) Recv(op *transport.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (singleRankMesh) Wait(_ context.Context, op *transport.Op) error { return op.State.Err }
func (singleRankMesh) Cancel(*transport.Op) bool                      { return false }
func (singleRankMesh) Fail(error)                                     {}
func (singleRankMesh) Close() error                                   { return nil }

func errAlone() error {
	return cohort.New("group", cohort.InvalidArgument, "the group has no other rank")
}
