// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// candidate may be a member of reconfigured groups: a PyTorch process or a Go rank.
type candidate struct {
	id     int // the rank that it was made with
	proc   *torchtest.Proc
	group  *group.Group
	handle string
}

// ask has a PyTorch process do something and reads what it says.
func (c *candidate) ask(t *testing.T, answer any, words ...any) {
	t.Helper()
	line, err := json.Marshal(words)
	if err != nil {
		t.Fatal(err)
	}
	c.proc.Send(t, string(line))
	c.receive(t, answer)
}

func (c *candidate) receive(t *testing.T, answer any) {
	t.Helper()
	line := c.proc.Line(t)
	if err := json.Unmarshal([]byte(line), answer); err != nil {
		t.Fatalf("%d printed %q: %v", c.id, line, err)
	}
}

// reconfigure asks for a group of the given handles and returns what went wrong.
func (c *candidate) reconfigure(t *testing.T, uuid int, handles []string, limit time.Duration) error {
	t.Helper()
	if c.proc != nil {
		var answer string
		c.ask(t, &answer, "reconfigure", uuid, handles, limit.Seconds())
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

// run executes a plan and returns the digests up to the first step that failed.
func (c *candidate) run(t *testing.T, plan []step) (results []string) {
	t.Helper()
	if c.proc != nil {
		c.ask(t, &results, "plan", plan)
		return results
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	results, err := runPlan(ctx, c.group, plan)
	if err != nil {
		results = append(results, "error: "+err.Error())
	}
	return results
}

// stage is a store and those that may be members of groups over it.
type stage struct {
	*testing.T
	addr, port string
	all        map[int]*candidate
}

// most is how many ranks a stage may have.
const most = 8

func newStage(t *testing.T) *stage {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	_, port, _ := net.SplitHostPort(server.Addr().String())
	return &stage{t, server.Addr().String(), port, map[int]*candidate{}}
}

// start makes candidates: Go ranks, and PyTorch processes otherwise.
func (s *stage) start(isGo func(id int) bool, ids ...int) {
	s.Helper()
	for _, id := range ids {
		c := &candidate{id: id}
		s.all[id] = c
		if !isGo(id) {
			c.proc = torchtest.Newest.Start(s.T,
				torchtest.Script{
					Name: fmt.Sprintf("member%d.py", id), Source: rankSource,
					Args: []string{strconv.Itoa(id), strconv.Itoa(most), s.port, `"reconfigure"`},
				})
			continue
		}
		client, err := tcpstore.Dial(s.Context(), s.addr)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = client.Close() })
		if c.group, err = group.New(s.Context(), client, cohort.Rank(id), most, group.WithReconfigure()); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { _ = c.group.Close() })
		c.handle = c.group.Handle()
	}
	for _, id := range ids {
		c := s.all[id]
		if c.proc != nil {
			c.receive(s.T, &c.handle)
		}
		if want := fmt.Sprintf("gloo:%d:-1:%d:127.0.0.1:%s", id, id, s.port); c.handle != want {
			s.Fatalf("%d: first handle %q, want %q", id, c.handle, want)
		}
	}
}

func (s *stage) handles(ids []int) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = s.all[id].handle
	}
	return list
}

// together does something with several candidates at once.
func (s *stage) together(ids []int, f func(c *candidate)) {
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { f(s.all[id]) })
	}
	wg.Wait()
	if s.Failed() {
		s.FailNow()
	}
}

// change makes a group of the given candidates, and has it run a plan.
func (s *stage) change(uuid int, plan []step, ids ...int) {
	s.Helper()
	list := s.handles(ids)
	s.together(ids, func(c *candidate) {
		if err := c.reconfigure(s.T, uuid, list, time.Minute); err != nil {
			s.Errorf("reconfiguration %d of %v: %d: %v", uuid, ids, c.id, err)
		}
		if want := fmt.Sprintf("gloo:%d:%d:%d:127.0.0.1:%s", slices.Index(ids, c.id), uuid, c.id, s.port); c.handle != want {
			s.Errorf("reconfiguration %d of %v: %d: handle %q, want %q", uuid, ids, c.id, c.handle, want)
		}
	})
	s.use(plan, ids)
}

// use has a group run a plan, and holds the results against those of a world of Go ranks.
func (s *stage) use(plan []step, ids []int) {
	s.Helper()
	got := make([][]string, len(ids))
	s.together(ids, func(c *candidate) { got[slices.Index(ids, c.id)] = c.run(s.T, plan) })
	transport := group.Auto
	if slices.ContainsFunc(ids, func(id int) bool { return s.all[id].proc != nil }) {
		transport = group.Gloo
	}
	compare(s.T, plan, oracle(s.T, transport, len(ids), plan), got)
	if s.Failed() {
		s.FailNow()
	}
}

// kill ends a candidate.
func (s *stage) kill(id int) {
	if c := s.all[id]; c.proc != nil {
		c.proc.Kill()
	} else {
		_ = c.group.Close()
	}
}

// broken has what is left of a group after a death run an operation in which all exchange data with all.
func (s *stage) broken(ids []int) {
	s.Helper()
	s.together(ids, func(c *candidate) {
		if got := c.run(s.T, []step{{Op: "all_to_all_single", N: 3, DType: "float32"}}); !strings.HasPrefix(got[0], "error: ") {
			s.Errorf("%d: a collective without a rank: %q", c.id, got)
		}
	})
}

// absent has a reconfiguration fail because one of those listed is dead.
func (s *stage) absent(uuid int, dead int, ids []int) {
	s.Helper()
	list := s.handles(append([]int{dead}, ids...))
	s.together(ids, func(c *candidate) {
		if err := c.reconfigure(s.T, uuid, list, 2*time.Second); err == nil {
			s.Errorf("%d: reconfigured with a dead rank", c.id)
		}
	})
}

// end lets all processes go.
func (s *stage) end(ids []int) {
	s.Helper()
	for _, id := range ids {
		if c := s.all[id]; c.proc != nil {
			c.proc.Send(s.T, `["end"]`)
		} else {
			_ = c.group.Close()
		}
	}
	for _, id := range ids {
		if c := s.all[id]; c.proc != nil {
			c.proc.MustExit(s.T, time.Minute)
		}
	}
}

// TestReconfigure has Go and PyTorch ranks in groups whose members change: every order, leaving, coming back, a death, a member
// that does not come, a new process.
func TestReconfigure(t *testing.T) {
	t.Parallel()
	torchtest.Newest.Need(t)
	for _, goIDs := range [][]int{{0}, {1, 2}, {1, 2, 3}} {
		t.Run(fmt.Sprint("go=", goIDs), func(t *testing.T) {
			t.Parallel()
			reconfigureStory(t, goIDs)
		})
	}
}

func reconfigureStory(t *testing.T, goIDs []int) {
	t.Helper()
	isGo := func(id int) bool { return slices.Contains(goIDs, id) }
	s := newStage(t)
	s.start(isGo, 0, 1, 2, 3)
	plan := []step{
		{Op: "all_reduce", N: 5, DType: "float32"},
		{Op: "all_gather", N: 3, DType: "int64"},
		{Op: "broadcast", N: 4, DType: "float64", Root: 1},
	}
	change := func(uuid int, ids ...int) {
		t.Helper()
		s.change(uuid, plan, ids...)
		s.use(plan, ids)
	}
	change(5, 0, 1, 2)
	change(6, 2, 0, 1)
	change(3, 2, 0) // any uuid that was not used
	change(9, 1, 2, 3, 0)
	s.kill(1)
	rest := []int{0, 2, 3}
	s.broken(rest)
	s.absent(10, 1, rest) // all others fail, and go on with the next list
	change(11, 3, 0, 2)
	s.start(isGo, 1) // another process in its place
	change(12, 3, 0, 2, 1)
	s.end([]int{0, 1, 2, 3})
}

// TestReconfigureRandom: members die, come, wait as spares, are listed although they are dead, and change their order, as a seed says. What
// a group runs after every change is random too. More of them:
//
//	COHORT_INTEROP=auto go test ./interop/group -run ReconfigureRandom -worlds 100 -world 1000
func TestReconfigureRandom(t *testing.T) {
	t.Parallel()
	torchtest.Newest.Need(t)
	for i := range *fuzzSeeds {
		seed := *fuzzFirst + uint64(i)
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			reconfigureRandomly(t, seed)
		})
	}
}

func reconfigureRandomly(t *testing.T, seed uint64) {
	t.Helper()
	about := torchtest.Newest.About(t)
	f := &fuzzer{Rand: rand.New(rand.NewPCG(seed, 13)), version: "reconfigured", halves: about.Has(torchtest.Halves)}
	s := newStage(t)
	var alive, free, members []int                                                        // ids; members are those of the present group
	isGo := func(int) bool { return len(alive) == 1 || len(alive) > 1 && f.IntN(2) == 0 } // one of each at least
	free = f.Perm(most)
	join := func() {
		id := free[0]
		free = free[1:]
		s.start(isGo, id)
		alive = append(alive, id)
		t.Logf("%d comes, Go: %v", id, s.all[id].proc == nil)
	}
	for range 2 + f.IntN(3) {
		join()
	}
	uuids := f.Perm(1000)
	uuid := func() int {
		n := uuids[0]
		uuids = uuids[1:]
		return n
	}
	for range 5 + f.IntN(4) {
		switch kind := f.IntN(6); {
		case kind == 0 && len(alive) < 6 && len(free) > 0:
			join()
		case kind <= 2 && len(members) > 1 && len(alive) > 2:
			dead := members[f.IntN(len(members))]
			gone := func(id int) bool { return id == dead }
			rest := slices.DeleteFunc(slices.Clone(members), gone)
			alive = slices.DeleteFunc(alive, gone)
			t.Logf("%d of %v dies", dead, members)
			s.kill(dead)
			if f.IntN(2) == 0 {
				s.broken(rest)
			}
			if f.IntN(2) == 0 {
				t.Logf("but is listed with %v", rest)
				s.absent(uuid(), dead, rest)
			}
			free, members = append(free, dead), nil // another process may take its rank
		default:
			f.Shuffle(len(alive), func(i, j int) { alive[i], alive[j] = alive[j], alive[i] })
			f.size = min(2+f.IntN(4), len(alive))
			members, f.peers = slices.Clone(alive[:f.size]), torchcaps.Peers{}
			if slices.ContainsFunc(members, func(id int) bool { return s.all[id].proc != nil }) {
				f.peers, _, _ = torchcaps.ParsePeers(about.Version)
			}
			plan := f.flat()
			t.Logf("%v of %v form a group and run %d steps", members, alive, len(plan))
			s.change(uuid(), plan, members...)
		}
	}
	s.end(alive)
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
	proc := torchtest.Newest.Start(t, torchtest.Script{
		Name: "lazy.py", Source: rankSource,
		Args: []string{"0", "2", port, `"reconfigure"`}, Env: map[string]string{"TORCH_GLOO_LAZY_INIT": "1"},
	})
	c := &candidate{proc: proc}
	c.receive(t, &c.handle)
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
	if _, err := g.Reconfigure(ctx, 1, handles); !errors.Is(err, cohort.NotSupported) ||
		!strings.Contains(err.Error(), "TORCH_GLOO_LAZY_INIT") {
		t.Errorf("%v", err)
	}
}
