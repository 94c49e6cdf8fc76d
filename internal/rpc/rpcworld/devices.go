// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// Devices is the gloo group by which PyTorch's workers tell each other their devices.
type Devices struct {
	mesh   *gloo.Mesh
	engine *gloo.Engine
}

// Close ends the group.
func (d *Devices) Close() { _ = d.mesh.Close() }

// Barrier is the last step of a static world's start.
func (d *Devices) Barrier(ctx context.Context) error {
	return d.engine.Run(ctx, &collective.Request{Kind: collective.Barrier, Tag: 2})
}

// ExchangeDevices builds the group and takes part in its two all-gathers: sizes, then pickles of name and devices. A Go
// worker has no devices but the CPU. It returns [ErrRestart] if the PyTorch workers have gone on to another round meanwhile.
func (w *World) ExchangeDevices(ctx context.Context, hook observe.Hook, storeAddr string) (*Devices, error) {
	ctx, cancel := context.WithCancel(ctx)
	m := worldcore.NewMoved(w.self(), w.round, w.torch)
	var looking sync.WaitGroup
	looking.Go(func() {
		if w.drive(ctx, m, nil); errors.Is(m.Err(), ErrRestart) {
			cancel()
		}
	})
	d, err := w.exchangeDevices(ctx, hook, storeAddr)
	if w.leftOver(ctx, err) {
		failpoint.At("rpcworld.devices.look")
		looking.Wait() // what it tries next is in another round
	}
	cancel()
	failpoint.At("rpcworld.devices.end")
	looking.Wait()
	if err != nil && errors.Is(m.Err(), ErrRestart) {
		return nil, m.Err()
	}
	return d, err
}

// leftOver reports whether a start failed because nothing listens where a PyTorch rank has published its address: that
// may be what a start of its that has failed has left in the store. Such a rank has not come yet.
func (w *World) leftOver(ctx context.Context, err error) bool {
	e, lost := errors.AsType[*cohort.Error](err)
	dial, failed := errors.AsType[*net.OpError](err)
	if !lost || e.Rank < 0 || !failed || dial.Op != "dial" || w.cfg.Round >= 0 {
		return false
	}
	if isGo, unknown := w.st.Check(ctx, worldcore.RankKey(int(e.Rank))); isGo || unknown != nil {
		return false
	}
	w.cfg.Logger.Warn("a PyTorch rank cannot be reached where it has published that it is: waiting for its next start",
		slog.Int("rank", int(e.Rank)), slog.Any("error", err))
	return true
}

func (w *World) exchangeDevices(ctx context.Context, hook observe.Hook, storeAddr string) (*Devices, error) {
	rank, size := w.cfg.Rank, w.cfg.Size
	cfg := gloo.Config{Rank: rank, Size: size, Store: w.st, Logger: w.cfg.Logger, Hook: hook, Group: "rpc", StoreAddr: storeAddr}
	if names := os.Getenv("GLOO_SOCKET_IFNAME"); names != "" {
		cfg.Devices = strings.Split(names, ",")[:1]
	}
	mesh, err := gloo.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d := &Devices{mesh: mesh, engine: gloo.NewEngine(mesh)}
	fail := func(err error) (*Devices, error) {
		d.Close()
		return nil, err
	}
	own, err := (&rpcwire.Encoder{}).Pickle(py.Tuple{w.cfg.Name, 0, &py.Dict{}, []any{}})
	if err != nil {
		return fail(err)
	}
	sizes := make([]byte, 8*size)
	in := binary.LittleEndian.AppendUint64(nil, uint64(len(own)))
	if err := d.engine.Run(ctx, &collective.Request{
		Kind: collective.AllGather, Tag: 0, DType: tensor.Int64, In: in,
		Out: sizes,
	}); err != nil {
		return fail(err)
	}
	largest := uint64(0)
	for r := range size {
		n := binary.LittleEndian.Uint64(sizes[8*r:])
		if n > 1<<20 {
			return fail(cohort.Newf("rpc: join", cohort.Protocol, "rank %d announces %d bytes of devices", r, n))
		}
		largest = max(largest, n)
	}
	block := make([]byte, largest)
	copy(block, own)
	all := make([]byte, largest*uint64(size)) //nolint:gosec // both bounded
	if err := d.engine.Run(ctx, &collective.Request{
		Kind: collective.AllGather, Tag: 1, DType: tensor.Uint8, In: block,
		Out: all,
	}); err != nil {
		return fail(err)
	}
	return d, nil
}
