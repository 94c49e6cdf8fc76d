// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// readOwn sets a key and reads it on one connection, as PyTorch does with its address.
func readOwn(t *testing.T, addr, key string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	b := wire.AppendSet(wire.AppendValidate(nil), wire.V, key, []byte("address"))
	_, err = conn.Write(wire.AppendKey(b, wire.V, wire.Get, key))
	must(t, err)
	_, err = io.ReadFull(conn, make([]byte, 8+len("address")))
	must(t, err)
}

// torchPrefix is where the ranks of PyTorch 2.x meet.
var torchPrefix = gloo.Torch26.MeshPrefix(gloo.DefaultPrefix, gloo.GroupName(0))

// besideTorch makes a group of rank 0 and a rank that does what one of PyTorch 2.x does, and returns the address of their store.
func besideTorch(ctx context.Context, t *testing.T, opts ...Option) (g *Group, mesh *gloo.Mesh, addr string) {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	addr = server.Addr().String()
	own, err := tcpstore.Dial(ctx, addr)
	must(t, err)
	t.Cleanup(func() { _ = own.Close() })
	theirs, err := tcpstore.Dial(ctx, addr, tcpstore.WithDialect(tcpstore.DialectV))
	must(t, err)
	t.Cleanup(func() { _ = theirs.Close() })
	must(t, each(2, func(r int) (err error) {
		if r == 0 {
			g, err = New(ctx, own, 0, 2, opts...)
			return err
		}
		mesh, err = gloo.Connect(ctx, gloo.Config{
			Rank: 1, Size: 2, Store: theirs, Prefix: torchPrefix,
			Generation: gloo.Torch26.GenerationOf(), StoreAddr: own.Addr(),
		})
		return err
	}))
	t.Cleanup(func() { _, _ = g.Close(), mesh.Close() })
	return g, mesh, addr
}

// sumWith is what the other rank does in a sum of one number, its 1.
func sumWith(ctx context.Context, mesh *gloo.Mesh, tag uint32) error {
	out := binary.LittleEndian.AppendUint32(nil, math.Float32bits(1))
	return gloo.NewEngine(mesh).Run(ctx, &collective.Request{
		Kind: collective.AllReduce, DType: tensor.Float32, Op: reduce.Sum,
		Out: out, Tag: tag,
	})
}

// TestRefusedTakesItsNumber: PyTorch ranks of 2.6 take a number for an operation that they refuse. So does this rank,
// and the next operation finds them.
func TestRefusedTakesItsNumber(t *testing.T) {
	t.Parallel()
	ctx := ctxOf(t)
	g, mesh, _ := besideTorch(ctx, t, WithPeers("torch-2.6"))
	if err := AllReduceSlice(ctx, g, []float32{3}, Avg); !errors.Is(err, cohort.NotSupported) || g.Err() != nil {
		t.Fatalf("an average: %v, the group: %v", err, g.Err())
	}
	x := []float32{3}
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	must(t, each(2, func(r int) error {
		if r == 0 {
			return AllReduceSlice(short, g, x, Sum)
		}
		return sumWith(short, mesh, 1)
	}))
	if x[0] != 4 {
		t.Errorf("the sum is %v", x[0])
	}
}

// TestVersionIsAskedForWhenItMatters: a PyTorch rank of 2.8 or later that reads its own address only after the group was made averages; one
// that never does may be older, and ends the group.
func TestVersionIsAskedForWhenItMatters(t *testing.T) {
	for _, reads := range []bool{false, true} {
		ctx := ctxOf(t)
		g, mesh, server := besideTorch(ctx, t)
		// The asking ends with the context of the operation, which then has not taken place: the group goes on.
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if err := AllReduceSlice(short, g, []float32{3}, Avg); !errors.Is(err, context.DeadlineExceeded) || g.Err() != nil {
			t.Errorf("a context that ends: %v, the group: %v", err, g.Err())
		}
		cancel()
		if reads {
			readOwn(t, server, "/"+gloo.Torch26.FirstKey(torchPrefix, 1))
		}
		x := []float32{3}
		must(t, each(2, func(r int) error {
			if r == 0 {
				err := AllReduceSlice(ctx, g, x, Avg)
				if !reads && errors.Is(err, cohort.NotSupported) {
					return nil
				}
				return err
			}
			if !reads {
				return nil
			}
			return sumWith(ctx, mesh, 0)
		}))
		if want := map[bool]float32{true: 2, false: 3}[reads]; x[0] != want {
			t.Errorf("read=%v: the average is %v, want %v", reads, x[0], want)
		}
	}
}
