// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed reconfigure.py
var reconfigureSource string

// candidate may be a member of reconfigured groups: a PyTorch process or a Go rank.
type candidate struct {
	id     int // the rank that it was made with
	proc   *torchtest.Proc
	group  *group.Group
	handle string
}

// ask has a PyTorch process do something and returns what it says.
func (c *candidate) ask(t *testing.T, words ...any) string {
	t.Helper()
	line, err := json.Marshal(words)
	if err != nil {
		t.Fatal(err)
	}
	c.proc.Send(t, string(line))
	return c.heard(t)
}

func (c *candidate) heard(t *testing.T) (answer string) {
	t.Helper()
	line := c.proc.Line(t)
	if err := json.Unmarshal([]byte(line), &answer); err != nil {
		t.Fatalf("%d printed %q", c.id, line)
	}
	return answer
}

// reconfigure asks for a group of the given handles and returns what went wrong.
func (c *candidate) reconfigure(t *testing.T, uuid int, handles []string, limit time.Duration) error {
	t.Helper()
	if c.proc != nil {
		answer := c.ask(t, "reconfigure", uuid, handles, limit.Seconds())
		if !strings.HasPrefix(answer, "gloo:") {
			return errors.New(answer)
		}
		c.handle = answer
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	next, err := c.group.Reconfigure(ctx, int64(uuid), handles)
	if err != nil {
		return err
	}
	c.group, c.handle = next, next.Handle()
	return nil
}

// use does collectives and says what they gave.
func (c *candidate) use(t *testing.T) string {
	t.Helper()
	if c.proc != nil {
		return c.ask(t, "use")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	power := float32(1)
	for range c.id {
		power *= 10
	}
	one := func(v float32) *tensor.Tensor { return tensor.Must(tensor.From([]float32{v}, 1)) }
	g, total, last := c.group, one(power), one(float32(c.id))
	all, members := make([]*tensor.Tensor, g.Size()), make([]string, g.Size())
	for i := range all {
		all[i] = one(0)
	}
	for _, w := range []*group.Work{g.AllReduce(ctx, total, group.Sum), g.AllGather(ctx, all, one(float32(c.id))), g.Broadcast(ctx, last, g.Size()-1)} {
		if err := w.Wait(ctx); err != nil {
			return err.Error()
		}
	}
	for i, t := range all {
		members[i] = strconv.Itoa(int(first(t)))
	}
	return fmt.Sprintf("%d of %d: %d [%s] %d", g.Rank(), g.Size(), int(first(total)), strings.Join(members, ", "), int(first(last)))
}

// TestReconfigure has Go and PyTorch ranks in groups whose members change: every order, leaving, coming back, a death, a member
// that does not come, a new process.
func TestReconfigure(t *testing.T) {
	torchtest.Newest.Need(t)
	for _, goIDs := range [][]int{{0}, {1, 2}, {1, 2, 3}} {
		t.Run(fmt.Sprint("go=", goIDs), func(t *testing.T) { reconfigureStory(t, goIDs) })
	}
}

func reconfigureStory(t *testing.T, goIDs []int) {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	_, portText, _ := net.SplitHostPort(server.Addr().String())
	start := func(id int) *candidate {
		c := &candidate{id: id}
		if !slices.Contains(goIDs, id) {
			c.proc = torchtest.Newest.Start(t, torchtest.Script{Name: fmt.Sprintf("member%d.py", id), Source: reconfigureSource, Args: []string{strconv.Itoa(id), "4", portText}})
			return c
		}
		client, err := tcpstore.Dial(t.Context(), server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if c.group, err = group.New(t.Context(), client, id, 4, group.WithReconfigure()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.group.Close() })
		c.handle = c.group.Handle()
		return c
	}
	all := make([]*candidate, 4)
	for id := range all {
		all[id] = start(id)
	}
	for _, c := range all {
		if c.proc != nil {
			c.handle = c.heard(t)
		}
		if want := fmt.Sprintf("gloo:%d:-1:%d:127.0.0.1:%s", c.id, c.id, portText); c.handle != want {
			t.Fatalf("%d: first handle %q, want %q", c.id, c.handle, want)
		}
	}
	handles := func(ids []int) []string {
		list := make([]string, len(ids))
		for i, id := range ids {
			list[i] = all[id].handle
		}
		return list
	}
	// together does something with several candidates at once.
	together := func(ids []int, f func(c *candidate)) {
		var wg sync.WaitGroup
		for _, id := range ids {
			wg.Go(func() { f(all[id]) })
		}
		wg.Wait()
	}
	change := func(uuid int, ids ...int) {
		t.Helper()
		list := handles(ids)
		together(ids, func(c *candidate) {
			if err := c.reconfigure(t, uuid, list, time.Minute); err != nil {
				t.Errorf("reconfiguration %d of %v: %d: %v", uuid, ids, c.id, err)
			}
		})
		total, members := 0, make([]string, len(ids))
		for i, id := range ids {
			power := 1
			for range id {
				power *= 10
			}
			total += power
			members[i] = strconv.Itoa(id)
		}
		if t.Failed() {
			t.FailNow()
		}
		for range 2 {
			together(ids, func(c *candidate) {
				want := fmt.Sprintf("%d of %d: %d [%s] %d", slices.Index(ids, c.id), len(ids), total, strings.Join(members, ", "), ids[len(ids)-1])
				if got := c.use(t); got != want {
					t.Errorf("after reconfiguration %d of %v: %d: %q, want %q", uuid, ids, c.id, got, want)
				}
				if want := fmt.Sprintf("gloo:%d:%d:%d:127.0.0.1:%s", slices.Index(ids, c.id), uuid, c.id, portText); c.handle != want {
					t.Errorf("%d: handle %q, want %q", c.id, c.handle, want)
				}
			})
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	change(5, 0, 1, 2)
	change(6, 2, 0, 1)
	change(3, 2, 0) // any uuid that was not used
	change(9, 1, 2, 3, 0)
	// A death, in the middle of a collective of the others.
	dead, rest := all[1], []int{0, 2, 3}
	if dead.proc != nil {
		dead.proc.Kill()
	} else {
		_ = dead.group.Close()
	}
	together(rest, func(c *candidate) {
		if got := c.use(t); strings.Contains(got, " of 4: ") {
			t.Errorf("%d: a collective without a rank: %q", c.id, got)
		}
	})
	// The dead one is still listed: all others fail, and go on with the next list.
	list := handles([]int{0, 1, 2, 3})
	together(rest, func(c *candidate) {
		if err := c.reconfigure(t, 10, list, 2*time.Second); err == nil {
			t.Errorf("%d: reconfigured with a dead rank", c.id)
		}
	})
	change(11, 3, 0, 2)
	// Another process in its place.
	all[1] = start(1)
	if all[1].proc != nil {
		all[1].handle = all[1].heard(t)
	}
	change(12, 3, 0, 2, 1)
	for _, c := range all {
		if c.proc != nil {
			c.proc.Send(t, `["end"]`)
		} else {
			_ = c.group.Close()
		}
	}
	for _, c := range all {
		if c.proc != nil {
			c.proc.MustExit(t, time.Minute)
		}
	}
}

// TestReconfigureRefusesLazyRanks: the second reconfiguration of PyTorch ranks that connect at first use never connects.
func TestReconfigureRefusesLazyRanks(t *testing.T) {
	torchtest.Newest.Need(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	_, port, _ := net.SplitHostPort(server.Addr().String())
	proc := torchtest.Newest.Start(t, torchtest.Script{Name: "lazy.py", Source: reconfigureSource, Args: []string{"0", "2", port}, Env: map[string]string{"TORCH_GLOO_LAZY_INIT": "1"}})
	c := &candidate{proc: proc}
	c.handle = c.heard(t)
	client, err := tcpstore.Dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	g, err := group.New(t.Context(), client, 1, 2, group.WithReconfigure())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	handles := []string{c.handle, g.Handle()}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = c.reconfigure(t, 1, handles, 5*time.Second) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := g.Reconfigure(ctx, 1, handles); !errors.Is(err, dist.NotSupported) || !strings.Contains(err.Error(), "TORCH_GLOO_LAZY_INIT") {
		t.Errorf("%v", err)
	}
}
