// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// dataProcess is a process that serves a store in a folder, and can be killed at any moment.
type dataProcess struct {
	t         *testing.T
	dir, addr string
	kills     int

	mu  sync.Mutex
	cmd *exec.Cmd
}

func startData(t *testing.T) *dataProcess {
	t.Helper()
	p := &dataProcess{t: t, dir: filepath.Join(t.TempDir(), "data"), addr: fmt.Sprint("127.0.0.1:", testkit.FreePort(t))}
	p.start()
	t.Cleanup(p.kill)
	return p
}

func (p *dataProcess) start() {
	p.cmd = exec.Command(os.Args[0], "-test.run=^$")
	p.cmd.Env = append(os.Environ(), tcpstore.DataProcess+"="+p.dir+","+p.addr)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		p.t.Error(err)
		return
	}
	testkit.Until(p.t, "it serves", func() bool {
		c, err := net.Dial("tcp", p.addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

func (p *dataProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// again kills it and starts it again.
func (p *dataProcess) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kill()
	p.start()
	p.kills++
}

// await returns when it is not being killed.
func (p *dataProcess) await() {
	p.mu.Lock()
	defer p.mu.Unlock()
}

// killedClient counts what it knows of its own counter: how high it must be, and how high it may be.
type killedClient struct {
	*tcpstore.Client

	key          string
	least, most  int64
	acknowledged int
}

// add adds once. When the connection is lost, it is not known whether that happened.
func (k *killedClient) add(ctx context.Context) error {
	sum, err := k.Add(ctx, k.key, 1)
	switch {
	case err == nil && (sum <= k.least || sum > k.most+1):
		return fmt.Errorf("%s: the sum is %d, but it was %d to %d before", k.key, sum, k.least, k.most)
	case err == nil:
		k.least, k.most = sum, sum
		k.acknowledged++
	case errors.Is(err, cohort.PeerLost):
		k.most++
	case errors.Is(err, cohort.Unavailable):
	default:
		return err
	}
	return nil
}

// push pushes an item that no other push has, and returns it if that is acknowledged.
func (k *killedClient) push(ctx context.Context, n int) (item string, err error) {
	item = fmt.Sprint(k.key, "/", n)
	err = k.QueuePush(ctx, "queue", []byte(item))
	if errors.Is(err, cohort.PeerLost) || errors.Is(err, cohort.Unavailable) {
		return "", nil
	}
	return item, err
}

// TestKilled kills the process of a store again and again while clients of every dialect change it: nothing that was acknowledged is lost,
// nothing is done twice.
func TestKilled(t *testing.T) {
	t.Parallel()
	p := startData(t)
	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	clients := make([]*killedClient, 6)
	pushed := make([]map[string]bool, len(clients))
	for i := range clients {
		dialect := dialects[i%len(dialects)]
		k := &killedClient{Client: connect(t, p.addr, tcpstore.WithDialect(dialect)), key: fmt.Sprint("client", i)}
		clients[i], pushed[i] = k, map[string]bool{}
		workers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				err := k.add(t.Context())
				if err == nil && n%4 == 0 && dialect != tcpstore.DialectLegacy {
					var item string
					if item, err = k.push(t.Context(), n); item != "" {
						pushed[i][item] = true
					}
				}
				if err != nil {
					t.Errorf("%s: %v", dialect, err)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 6 {
		time.Sleep(time.Duration(20+r.IntN(150)) * time.Millisecond)
		p.again()
	}
	stop()
	workers.Wait()
	p.again()
	verifyKilled(t, p, clients, pushed)
}

func verifyKilled(t *testing.T, p *dataProcess, clients []*killedClient, pushed []map[string]bool) {
	t.Helper()
	c := connect(t, p.addr)
	total := 0
	for _, k := range clients {
		sum, err := c.Add(t.Context(), k.key, 0)
		if err != nil || sum < k.least || sum > k.most {
			t.Errorf("%s is %d, want %d to %d: %v", k.key, sum, k.least, k.most, err)
		}
		total += k.acknowledged
	}
	popped := map[string]int{}
	for {
		item, err := c.QueuePop(t.Context(), "queue", false)
		if errors.Is(err, cohort.Empty) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		popped[string(item)]++
	}
	for i := range pushed {
		for item := range pushed[i] {
			if popped[item] != 1 {
				t.Errorf("%s was pushed, and is there %d times", item, popped[item])
			}
		}
	}
	for item, n := range popped {
		if n > 1 {
			t.Errorf("%s is there %d times", item, n)
		}
	}
	t.Logf("%d adds were acknowledged, %d items are there, %d kills", total, len(popped), p.kills)
	if total < 10 {
		t.Errorf("only %d adds were acknowledged", total)
	}
}

// TestLinearizableKilled is TestLinearizable where the process of the store is killed and started again.
func TestLinearizableKilled(t *testing.T) {
	t.Parallel()
	p := startData(t)
	const goroutines, calls, killEvery = 6, 40, 60
	var history recorder
	var made atomic.Int64
	var workers sync.WaitGroup
	for g := range goroutines {
		dialect := dialects[g%len(dialects)]
		c := connect(t, p.addr, tcpstore.WithDialect(dialect), tcpstore.WithWaitConns(2))
		workers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for i := range calls {
				a := randomAction(r, fmt.Sprintf("%d.%d", g, i))
				a.dialect, a.goroutine = dialect.String(), strconv.Itoa(g)
				p.await() // else most calls find no server
				history.run(t, c, g, a)
				if made.Add(1)%killEvery == 0 {
					p.again()
				}
			}
		})
	}
	workers.Wait()
	result, info := porcupine.CheckOperationsVerbose(storeModel, history.ops, 20*time.Second)
	t.Logf("%d calls, %d with unknown end, %d without effect, %d kills: %v", len(history.ops), history.unknown, history.dropped,
		p.kills, result)
	if result != porcupine.Ok || p.kills < 3 {
		file := filepath.Join(t.ArtifactDir(), "history.html")
		_ = porcupine.VisualizePath(storeModel, info, file)
		t.Errorf("not linearizable (%v), or only %d kills: see %s", result, p.kills, file)
	}
}

// TestFullDisk: when the disk is full changes are refused, reads go on, and changes too when there is room.
func TestFullDisk(t *testing.T) {
	disk, ctx := testkit.SmallDisk(t), t.Context()
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 24<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	var log testkit.Log
	s, err := tcpstore.Listen("127.0.0.1:0", tcpstore.WithDataDir(filepath.Join(disk, "data")), tcpstore.WithSmallLog(8<<10, 1<<30),
		tcpstore.WithLogger(log.Logger(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	native, torch := connect(t, s.Addr().String()), connect(t, s.Addr().String(), tcpstore.WithDialect(tcpstore.DialectV))
	if err = torch.Set(ctx, "before", []byte("v")); err != nil {
		t.Fatal(err)
	}
	stored := 0
	for ; err == nil && stored < 100; stored++ {
		err = native.Set(ctx, fmt.Sprint("k", stored), make([]byte, 1<<10))
	}
	if !errors.Is(err, cohort.Exhausted) {
		t.Fatalf("%d keys were stored: %v", stored, err)
	}
	if err := torch.Set(ctx, "lost", make([]byte, 1<<10)); !errors.Is(err, cohort.PeerLost) {
		t.Errorf("a client of PyTorch: %v", err)
	}
	testkit.Until(t, "the log says why", func() bool { return log.Has("has no room") && log.Has("client cut") })
	if v, err := native.Get(ctx, "before"); err != nil || string(v) != "v" {
		t.Errorf("a read: %q, %v", v, err)
	}
	if there, err := native.Check(ctx, fmt.Sprint("k", stored-1)); err != nil || there {
		t.Errorf("what was refused is there: %v, %v", there, err)
	}
	if d := s.Stats().Data; d.Refused < 2 {
		t.Errorf("%+v", d)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := native.Set(ctx, "after", []byte("v")); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if v, err := torch.Get(ctx, "after"); err != nil || string(v) != "v" {
		t.Errorf("a client of PyTorch with room again: %q, %v", v, err)
	}
}
