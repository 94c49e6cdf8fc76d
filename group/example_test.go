// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// world runs f as three ranks of one process. Real ranks are processes that share a store over the network.
func world(f func(ctx context.Context, g *group.Group) error) {
	ctx := context.Background()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	var ranks sync.WaitGroup
	for rank := range cohort.Rank(3) {
		ranks.Go(func() {
			g, err := group.New(ctx, s, rank, 3)
			if err != nil {
				fmt.Println(err)
				return
			}
			if err := f(ctx, g); err != nil {
				fmt.Println(err)
			}
			_ = g.Barrier(ctx).Wait(ctx) // leave together
			_ = g.Close()
		})
	}
	ranks.Wait()
}

func ExampleNew() {
	world(func(_ context.Context, g *group.Group) error {
		if g.Rank() == 0 {
			fmt.Println("ranks:", g.Size())
		}
		return nil
	})
	// Output: ranks: 3
}

func ExampleGroup_AllReduce() {
	world(func(ctx context.Context, g *group.Group) error {
		t := tensor.Must(tensor.From([]float32{float32(g.Rank()), 1}, 2))
		work := g.AllReduce(ctx, t, group.Sum) // returns at once
		if err := work.Wait(ctx); err != nil { // ctx ends the wait, not the operation
			return err
		}
		if g.Rank() == 0 {
			sum, err := tensor.Copy[float32](t)
			fmt.Println(sum, err)
		}
		return nil
	})
	// Output: [3 3] <nil>
}

func ExampleAllReduceSlice() {
	world(func(ctx context.Context, g *group.Group) error {
		values := []int64{int64(g.Rank()), 10}
		err := group.AllReduceSlice(ctx, g, values, group.Max)
		if g.Rank() == 1 {
			fmt.Println(values)
		}
		return err
	})
	// Output: [2 10]
}

func ExampleGroup_NewGroup() {
	world(func(ctx context.Context, g *group.Group) error {
		sub, err := g.NewGroup(ctx, []cohort.Rank{0, 2}) // all ranks call it
		if err != nil || sub == nil {                    // nil: not a member
			return err
		}
		defer func() { _ = sub.Close() }()
		all, err := group.AllGatherSlice(ctx, sub, []int32{int32(g.Rank())})
		if sub.Rank() == 1 {
			fmt.Println(all, "global rank", sub.GlobalRank(1))
		}
		return err
	})
	// Output: [0 2] global rank 2
}

func ExampleGroup_RecvAny() {
	world(func(ctx context.Context, g *group.Group) error {
		if g.Rank() != 0 {
			return group.SendSlice(ctx, g, []int64{int64(g.Rank() * 100)}, 0, 7)
		}
		total := int64(0)
		for range 2 {
			room := []int64{0}
			w := g.RecvAny(ctx, tensor.Must(tensor.From(room, 1)), 7)
			if err := w.Wait(ctx); err != nil {
				return err
			}
			from, err := w.SourceRank()
			if err != nil {
				return err
			}
			total += room[0] / int64(from)
		}
		fmt.Println(total)
		return nil
	})
	// Output: 200
}

func ExampleGroup_Coalesce() {
	world(func(ctx context.Context, g *group.Group) error {
		weights := tensor.Must(tensor.From([]float32{1, 2}, 2))
		bias := tensor.Must(tensor.From([]float32{float32(g.Rank())}, 1))
		err := g.Coalesce(ctx, func(c *group.Coalescer) { // one exchange for both
			c.AllReduce(weights, group.Sum)
			c.AllReduce(bias, group.Sum)
		}).Wait(ctx)
		if g.Rank() == 0 {
			w, _ := tensor.Copy[float32](weights)
			b, _ := tensor.Copy[float32](bias)
			fmt.Println(w, b)
		}
		return err
	})
	// Output: [3 6] [3]
}

func ExampleGroup_Batch() {
	world(func(ctx context.Context, g *group.Group) error {
		in := tensor.Must(tensor.Of([]float32{float32(g.Rank()), 1}))
		out := tensor.Must(tensor.New(tensor.Float32, 2))
		ops := []group.P2POp{ // in Python: dist.batch_isend_irecv([cohort.P2POp(dist.isend, ...), ...])
			{Op: group.OpSend, Tensor: in, Peer: (g.Rank() + 1) % 3},
			{Op: group.OpRecv, Tensor: out, Peer: (g.Rank() + 2) % 3},
		}
		err := group.WaitAll(ctx, g.Batch(ctx, ops)...)
		if g.Rank() == 0 {
			fmt.Println(ops)
			fmt.Println(out)
		}
		return err
	})
	// Output:
	// [send float32 [2] to rank 1, tag 0 recv float32 [2] from rank 2, tag 0]
	// tensor([2., 1.])
}

func ExampleGroup_SendObjects() {
	world(func(ctx context.Context, g *group.Group) error {
		switch g.Rank() {
		case 0: // in Python: dist.send_object_list(objects, dst=1)
			return g.SendObjects(ctx, [][]byte{[]byte("epoch 3"), []byte("done")}, 1)
		case 1: // in Python: dist.recv_object_list(objects, src=0)
			objects := make([][]byte, 2)
			from, err := g.RecvObjects(ctx, objects, 0)
			fmt.Printf("%s from rank %d\n", objects, from)
			return err
		}
		return nil
	})
	// Output: [epoch 3 done] from rank 0
}

func ExampleGroup_NewMesh() {
	world(func(ctx context.Context, g *group.Group) error {
		mesh, err := g.NewMesh(ctx, []group.Axis{{Name: "dp", Size: 3}, {Name: "tp", Size: 1}})
		if err != nil {
			return err
		}
		defer func() { _ = mesh.Close() }()
		replicas, err := mesh.Group("dp")
		if err != nil {
			return err
		}
		gradients := []float32{float32(g.Rank())}
		err = group.AllReduceSlice(ctx, replicas, gradients, group.Avg)
		if g.Rank() == 2 {
			fmt.Println(mesh, mesh.Coordinates(), gradients)
		}
		return err
	})
	// Output: mesh(dp=3, tp=1) [2 0] [1]
}
