// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store/cluster"
)

var kills = flag.Int("cluster.kills", 1, "how often the leader's process is killed, and stopped")

// processVariable makes the test binary a member.
const processVariable = "COHORT_TEST_MEMBER"

func TestMain(m *testing.M) {
	if doc := os.Getenv(processVariable); doc != "" {
		if err := serveProcess(doc); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// processConfig is a member in a process of its own, and the address for its clients.
type processConfig struct {
	Name, Dir, Clients string
	Members            []cluster.Peer
	Store              bool // it serves a store instead of counters
}

type wireResult struct {
	Value   int64
	Refused string
}

// serveProcess is a member that answers clients until it is killed.
func serveProcess(doc string) error {
	var c processConfig
	if err := json.Unmarshal([]byte(doc), &c); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With(slog.String("at", c.Name))
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // ends with the test
		os.Exit(0)
	}()
	if c.Store {
		s, err := cluster.ServeStore(context.Background(), cluster.StoreConfig{
			Config: cluster.Config{Dir: c.Dir, Name: c.Name, Members: c.Members, Log: log, SnapshotBytes: 100_000}, Addr: c.Clients,
		})
		if err != nil {
			return err
		}
		<-s.Done()
		return s.Member().Err()
	}
	m, err := cluster.Start(context.Background(), cluster.Config{
		Dir: c.Dir, Name: c.Name, Members: c.Members, State: newCounters(), Log: log,
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Clients)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go serveClient(m, conn)
	}
}

func serveClient(m *cluster.Member, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	for {
		var command []byte
		if in.Decode(&command) != nil {
			return
		}
		answer := make(chan result, 1)
		m.Propose([]cluster.Proposal{{Data: command, Local: answer}})
		r := <-answer
		w := wireResult{Value: r.value}
		if r.err != nil {
			w.Refused = r.err.Error()
		}
		if out.Encode(w) != nil {
			return
		}
	}
}

// processes are members in processes of their own.
type processes struct {
	t       *testing.T
	configs []processConfig
	running []*exec.Cmd
	addrs   []string
}

func newProcesses(t *testing.T, n int) *processes {
	t.Helper()
	return startProcesses(t, n, false)
}

func startProcesses(t *testing.T, n int, store bool) *processes {
	t.Helper()
	ps := &processes{t: t, running: make([]*exec.Cmd, n)}
	var members []cluster.Peer
	for i := range n {
		members = append(members, cluster.Peer{Name: string(rune('a' + i)), Addr: freeAddr(t)})
		ps.addrs = append(ps.addrs, members[i].Addr)
	}
	for i, m := range members {
		ps.configs = append(ps.configs, processConfig{m.Name, filepath.Join(t.TempDir(), m.Name), freeAddr(t), members, store})
		ps.start(i)
	}
	t.Cleanup(func() {
		for i := range ps.running {
			ps.signal(i, syscall.SIGCONT)
			ps.kill(i)
		}
	})
	return ps
}

func (ps *processes) start(i int) {
	ps.t.Helper()
	doc, err := json.Marshal(ps.configs[i])
	if err != nil {
		ps.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processVariable+"="+string(doc))
	if testing.Verbose() {
		cmd.Stderr = ps.t.Output()
	}
	if _, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		ps.t.Fatal(err)
	}
	ps.running[i] = cmd
}

func (ps *processes) signal(i int, s syscall.Signal) { _ = ps.running[i].Process.Signal(s) }

func (ps *processes) kill(i int) {
	_ = ps.running[i].Process.Kill()
	_ = ps.running[i].Wait()
}

// status is the cluster's, when it is as wanted.
func (ps *processes) status(wanted func(cluster.Status) bool) (s cluster.Status) {
	ps.t.Helper()
	ctx, cancel := context.WithTimeout(ps.t.Context(), time.Minute)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		short, end := context.WithTimeout(ctx, 10*time.Second)
		s, err = cluster.Describe(short, ps.addrs, nil)
		end()
		if err == nil && wanted(s) {
			return s
		}
		time.Sleep(10 * time.Millisecond)
	}
	ps.t.Fatalf("the cluster does not become as wanted: %+v %v", s, err)
	return s
}

// leader is the place of the member that leads, when all others have what it has.
func (ps *processes) leader() int {
	ps.t.Helper()
	s := ps.status(func(s cluster.Status) bool {
		for _, m := range s.Members {
			if m.Matched+100 < s.Committed {
				return false
			}
		}
		return s.Leading
	})
	for i, c := range ps.configs {
		if c.Name == s.Leader {
			return i
		}
	}
	ps.t.Fatalf("the leader %q is not known", s.Leader)
	return 0
}

// adder is a client on a connection.
type adder struct {
	ps      *processes
	session string
	seq     int
	at      int
	conn    net.Conn
	in      *gob.Decoder
	out     *gob.Encoder
	longest time.Duration
}

// attempt is how long one attempt waits for its answer: a member that is stopped gives none.
const attempt = 200 * time.Millisecond

func (a *adder) add(end time.Time) error {
	a.seq++
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(add{a.session, "n", a.seq, 1}); err != nil {
		return err
	}
	begun := time.Now()
	defer func() { a.longest = max(a.longest, time.Since(begun)) }()
	for time.Now().Before(end) {
		if a.try(b.Bytes()) == nil {
			return nil
		}
		if a.conn != nil {
			_ = a.conn.Close()
			a.conn = nil
		}
		a.at++
		time.Sleep(2 * time.Millisecond)
	}
	return errors.New("no member answers")
}

func (a *adder) try(command []byte) (err error) {
	if a.conn == nil {
		if a.conn, err = net.DialTimeout("tcp", a.ps.configs[a.at%len(a.ps.configs)].Clients, attempt); err != nil {
			a.conn = nil
			return err
		}
		a.in, a.out = gob.NewDecoder(a.conn), gob.NewEncoder(a.conn)
	}
	_ = a.conn.SetDeadline(time.Now().Add(attempt))
	if err = a.out.Encode(command); err != nil {
		return err
	}
	var r wireResult
	if err = a.in.Decode(&r); err == nil && r.Refused != "" {
		err = errors.New(r.Refused)
	}
	return err
}

// load has clients add, until stop is called. pause is the longest that an add has taken since the last call of pause.
func (ps *processes) load(clients int) (pause func() time.Duration, stop func() int64) {
	var wait sync.WaitGroup
	var ended atomic.Bool
	var total, longest atomic.Int64
	for i := range clients {
		a := &adder{ps: ps, session: fmt.Sprint("p", i), at: i}
		wait.Go(func() {
			for !ended.Load() {
				a.longest = 0
				if err := a.add(time.Now().Add(time.Minute)); err != nil {
					ps.t.Errorf("client %d: %v", i, err)
					return
				}
				total.Add(1)
				for was := longest.Load(); int64(a.longest) > was && !longest.CompareAndSwap(was, int64(a.longest)); was = longest.Load() {
				}
			}
		})
	}
	return func() time.Duration { return time.Duration(longest.Swap(0)) }, func() int64 {
		ended.Store(true)
		wait.Wait()
		return total.Load()
	}
}

// TestLeaderDies: the process of the leader is killed, or stopped, while clients add: they go on with the next leader, and nothing is lost
// or done twice. The pauses are logged.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	ps := newProcesses(t, 3)
	ps.leader()
	pause, stop := ps.load(4)
	// Margins of five over what is promised: 0.6 s and 2 s.
	for _, c := range []struct {
		name  string
		limit time.Duration
		fail  func(i int)
		heal  func(i int)
	}{
		{"killed", 3 * time.Second, ps.kill, ps.start},
		{
			"stopped", 10 * time.Second, func(i int) { ps.signal(i, syscall.SIGSTOP) },
			func(i int) { ps.signal(i, syscall.SIGCONT) },
		},
	} {
		var all []time.Duration
		for range *kills {
			leader := ps.leader()
			pause()
			c.fail(leader)
			ps.status(func(s cluster.Status) bool { return s.Leading && s.Leader != ps.configs[leader].Name })
			time.Sleep(100 * time.Millisecond)
			all = append(all, pause())
			c.heal(leader)
			if last := all[len(all)-1]; last > c.limit {
				t.Errorf("leader %s: clients waited %v, want %v at most", c.name, last, c.limit)
			}
		}
		t.Logf("leader %s: the longest pauses of %d clients: %v", c.name, 4, all)
	}
	total := stop()
	last := &adder{ps: ps, session: "last"}
	if err := last.add(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	check := &adder{ps: ps, session: "check"}
	if value, err := check.value(time.Now().Add(time.Minute)); err != nil || value != total+1 {
		t.Errorf("the counter is %d (%v), want %d", value, err, total+1)
	}
}

// value adds nothing, and so reads.
func (a *adder) value(end time.Time) (int64, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(add{a.session, "n", 1, 0}); err != nil {
		return 0, err
	}
	for time.Now().Before(end) {
		if a.conn == nil {
			a.at++
		}
		var r wireResult
		if err := a.try(b.Bytes()); err == nil {
			_ = a.out.Encode(b.Bytes())
			if err = a.in.Decode(&r); err == nil && r.Refused == "" {
				return r.Value, nil
			}
		}
		if a.conn != nil {
			_ = a.conn.Close()
			a.conn = nil
		}
	}
	return 0, errors.New("no member answers")
}
