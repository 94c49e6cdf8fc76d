// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command reconfigure trains a model with members that join and leave, without a restart. Started alone it hosts the
// store and the coordinator, which decides which processes are members; with -join it is a member itself. train.py is a member written in
// Python, which needs PyTorch 2.14. Both train the same model in one group:
//
//	go run ./examples/reconfigure -listen 127.0.0.1:29500 -members 3 &
//	python3 examples/reconfigure/train.py 127.0.0.1:29500 &
//	python3 examples/reconfigure/train.py 127.0.0.1:29500 &
//	go run ./examples/reconfigure -join 127.0.0.1:29500 &
//	python3 examples/reconfigure/train.py 127.0.0.1:29500 --die-at 30 || echo "one is dead" &
//
// Three of the four train, the fourth is a spare. One of them kills itself (as kill -9 does) after 30 steps, if it is a member by
// then: the others keep their processes and their model, the spare gets it from one of them, and the loss continues falling.
//
// The launcher has a coordinator too, and starts and watches the members. Five processes, four members; kill -9 one of them:
//
//	cohort run --nproc-per-node 5 --members 4 examples/reconfigure/train.py
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:29500", "where the store is, for the coordinator")
	members := flag.Int("members", 3, "members of the group")
	silence := flag.Duration("silence", 3*time.Second, "after how long without a sign of life a member counts as dead")
	join := flag.String("join", launched(), "be a member, and find the coordinator through the store at this address; cohort run sets it")
	steps := flag.Int("steps", 100, "steps to train, for a member")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *join != "" {
		err = train(ctx, *join, *steps)
	} else {
		err = coordinate(ctx, *listen, *members, *silence)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// launched returns the store of "cohort run --members", if that has started this process.
func launched() string {
	if os.Getenv(elastic.EnvMember) == "" {
		return ""
	}
	return net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
}

// coordinate hosts the store, outside of all members, and decides who they are.
func coordinate(ctx context.Context, addr string, members int, silence time.Duration) error {
	server, err := tcpstore.Listen(addr)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	client, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	c, err := elastic.New(client, members, members, elastic.WithSilence(silence))
	if err != nil {
		return err
	}
	fmt.Println("store and coordinator at", addr)
	if err = c.Run(ctx); err != nil {
		return err
	}
	fmt.Println("all members have finished")
	// Members that have not read their last answer still need the store.
	time.Sleep(time.Second)
	return nil
}

// What train.py has too.
const (
	inputs   = 3
	batch    = 16
	rate     = 0.05
	momentum = 0.9
	pause    = 20 * time.Millisecond // between steps, so that there is something to watch
)

// state is all that a new member needs: parameters (weights and bias) and what the optimizer remembers.
type state struct {
	step       int
	parameters [inputs + 1]float32
	velocity   [inputs + 1]float32
}

// errOver: the round has ended.
var errOver = errors.New("the round is over")

// train is a member.
func train(ctx context.Context, addr string, steps int) error {
	s, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	m, err := elastic.Join(ctx, s, elastic.WithEnvID())
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	g, err := group.New(ctx, s, cohort.Rank(m.ID()), int(m.ID())+1, group.WithReconfigure(), group.WithTimeout(10*time.Second),
		group.WithPeers(group.Torch214))
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	var now state
	for {
		round, err := m.Next(ctx, g.Handle())
		if errors.Is(err, cohort.Closed) {
			return nil // a spare that was not needed
		}
		if err != nil {
			return err
		}
		next, err := g.Reconfigure(ctx, round.UUID, round.Handles)
		if err == nil {
			g = next
			err = now.run(ctx, m, g, steps)
		}
		if err == nil {
			fmt.Printf("go member %d done at step %d\n", m.ID(), now.step)
			return m.Done(ctx)
		}
		if ctx.Err() != nil {
			return err
		}
		fmt.Printf("go member %d: %v\n", m.ID(), err)
	}
}

// run trains in one group.
func (now *state) run(ctx context.Context, m *elastic.Member, g *group.Group, steps int) error {
	if err := now.share(ctx, g); err != nil {
		return err
	}
	fmt.Printf("go member %d (process %d): rank %d of %d at step %d\n", m.ID(), os.Getpid(), g.Rank(), g.Size(), now.step)
	for now.step < steps {
		over, err := m.Over(ctx)
		if err != nil {
			return err
		}
		loss, over, err := now.learn(ctx, g, over)
		if err != nil {
			return err
		}
		if now.step%10 == 0 {
			fmt.Printf("go member %d: step %d loss %.6f\n", m.ID(), now.step, loss)
		}
		if over {
			return errOver
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// share gives all members the state of the member that is furthest: a step may have succeeded for some only.
func (now *state) share(ctx context.Context, g *group.Group) error {
	all, err := group.AllGatherSlice(ctx, g, []int64{int64(now.step)})
	if err != nil {
		return err
	}
	furthest := slices.Index(all, slices.Max(all))
	flat := slices.Concat(now.parameters[:], now.velocity[:])
	if err := group.BroadcastSlice(ctx, g, flat, cohort.Rank(furthest)); err != nil {
		return err
	}
	now.step = int(all[furthest])
	copy(now.parameters[:], flat)
	copy(now.velocity[:], flat[inputs+1:])
	return nil
}

// learn takes one step of gradient descent with all members and returns the loss, and whether one of them has seen that the
// round is over: all leave after the same step.
func (now *state) learn(ctx context.Context, g *group.Group, over bool) (float32, bool, error) {
	sums := make([]float32, inputs+3) // gradients, loss, and who wants to leave
	if over {
		sums[inputs+2] = 1
	}
	for range batch {
		var x [inputs]float32
		y, want := now.parameters[inputs], float32(0.5)
		for i := range x {
			x[i] = rand.Float32()*2 - 1 //nolint:gosec // training data
			y += now.parameters[i] * x[i]
			want += float32(i+1) * x[i]
		}
		d := y - want
		for i := range x {
			sums[i] += 2 * d * x[i] / batch
		}
		sums[inputs] += 2 * d / batch
		sums[inputs+1] += d * d / batch
	}
	if err := group.AllReduceSlice(ctx, g, sums, group.Sum); err != nil {
		return 0, false, err // nothing was changed
	}
	n := float32(g.Size())
	for i := range now.parameters {
		now.velocity[i] = momentum*now.velocity[i] + sums[i]/n
		now.parameters[i] -= rate * now.velocity[i]
	}
	now.step++
	return sums[inputs+1] / n, sums[inputs+2] > 0, nil
}
