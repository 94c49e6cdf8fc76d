// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// maxServers bounds the ranks that are asked over the network.
const maxServers = 4096

// AskStore looks at a job through its store alone: who waits for which key, and what the ranks tell that run PyTorch's
// debug server (torch.distributed.debug.start_debug_server).
func AskStore(ctx context.Context, client *tcpstore.Client) verdict.Job {
	seen := verdict.Job{Taken: time.Now()}
	seen.Waits, seen.Polls = StoreWaits(ctx, client.Addr(), nil)
	limited, cancel := context.WithTimeout(ctx, launcherTime)
	defer cancel()
	var servers []string
	for len(servers) < maxServers {
		key := "debug_server/rank" + strconv.Itoa(len(servers))
		if there, failed := client.Check(limited, key); failed != nil || !there {
			break
		}
		value, failed := client.Get(limited, key)
		if failed != nil {
			break
		}
		servers = append(servers, string(value))
	}
	seen.Ranks = make([]verdict.Rank, len(servers))
	var wg sync.WaitGroup
	for rank, server := range servers {
		wg.Go(func() { seen.Ranks[rank] = askDebugServer(ctx, rank, server) })
	}
	wg.Wait()
	return seen
}

// storeTrouble says why a store cannot be reached, "" if it can or that is not known.
func storeTrouble(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return ""
	}
	conn, err := ctxdial.Dial(ctx, &net.Dialer{}, "tcp", addr)
	if err == nil {
		_ = conn.Close()
		return ""
	}
	if ctxdial.UnknownHost(err) {
		return "the name " + host + " does not resolve"
	}
	if ctxdial.Refused(err) {
		return "nothing listens there"
	}
	return ""
}

// oldKeys reports whether the store of a restarted job has keys of an attempt before: torchrun goes on with the store of its
// rendezvous, in which more workers have joined than the job has. A launcher of cohort begins each attempt with an empty one, and an
// older PyTorch, 1.13 among them, has a prefix of its own for the keys of each attempt.
func oldKeys(ctx context.Context, q question) bool {
	first := q.Env
	restarts, _ := strconv.Atoi(first["TORCHELASTIC_RESTART_COUNT"])
	if restarts == 0 || first["TORCHELASTIC_USE_AGENT_STORE"] != "True" || first[controlsock.EnvRun] != "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := tcpstore.Dial(ctx, q.Addr)
	if err != nil {
		return false
	}
	defer func() { _ = client.Close() }()
	if joined, err := client.Workers(ctx); err != nil || joined <= int64(q.World) {
		return false
	}
	return slices.ContainsFunc(q.Ranks, func(rank int) bool {
		for _, key := range []string{"cpu//0/" + strconv.Itoa(rank), "cuda//0/" + strconv.Itoa(rank), "cuda//0"} { // gloo's, and NCCL's
			if there, err := client.Check(ctx, "default_pg/0//"+key); err == nil && there {
				return true
			}
		}
		return false
	})
}

// noStore says who listens at the address of a store on this host and does not answer as one, "" if that is not known.
// ranks are the processes of the job, one of which may host it.
func noStore(ctx context.Context, addr string, ranks []int) string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	quiet := net.Dialer{Control: func(_, at string, _ syscall.RawConn) error { return portowner.RefuseTorchPort(at) }}
	conn, err := ctxdial.Dial(ctx, &quiet, "tcp", addr)
	if err != nil {
		return "" // of PyTorch it is not disturbed
	}
	local, remote := conn.LocalAddr(), conn.RemoteAddr()
	_ = conn.Close()
	here, ok := local.(*net.TCPAddr)
	there, too := remote.(*net.TCPAddr)
	if !ok || !too || !here.IP.Equal(there.IP) {
		return "" // on another host
	}
	owner, found := portowner.Find(there.Port)
	if !found || slices.Contains(ranks, owner.PID) || hasTorch(owner.PID) {
		return ""
	}
	client, err := tcpstore.Dial(ctx, addr)
	switch {
	case err == nil:
		_ = client.Close()
		return ""
	case errors.Is(err, cohort.Protocol): // what it answered is nothing that a store says
		return owner.String() + " listens there and is not a store"
	}
	return owner.String() + " listens there and has not answered as a store does" // a store that is stopped or slow does not either
}

// askDebugServer asks the debug server of a rank for its flight recorder.
func askDebugServer(ctx context.Context, rank int, server string) verdict.Rank {
	r := verdict.Rank{Rank: rank, Process: verdict.Process{State: "S"}}
	if u, err := url.Parse(server); err == nil {
		r.Host = u.Hostname()
	}
	if !strings.HasPrefix(server, "http://") {
		r.Trouble = fmt.Sprintf("its debug server is %.100q, which is not an address", server)
		return r
	}
	r.Dump = askRecorders(ctx, strings.TrimSuffix(server, "/"))
	r.Trouble = "its debug server does not answer"
	if r.Dump != nil {
		r.Trouble = fmt.Sprintf("%d operations recorded", len(r.Dump.Entries))
	}
	return r
}

// StoreWaits asks a store of cohort who waits for which key, and who asks for one again and again; none for another store. ranks are the
// processes that are known.
func StoreWaits(ctx context.Context, addr string, ranks map[int]int) (waits, polls []verdict.Wait) {
	return askStoreWaits(ctx, addr).byRank(nil, ranks)
}

// storeSaid is what a store of cohort says of its clients.
type storeSaid struct {
	Server int // its port
	Time   time.Time
	Waits  []tcpstore.Wait // for a key
	Polls  []tcpstore.Wait // that ask for one again and again
}

// askStoreWaits asks a store; the answer is empty if it is not one of cohort's.
func askStoreWaits(ctx context.Context, addr string) (said storeSaid) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := tcpstore.Dial(ctx, addr, tcpstore.WithRawKeys())
	if err != nil {
		return said // PyTorch's own, or gone
	}
	defer func() { _ = client.Close() }()
	stats, err := client.Stats(ctx)
	if err != nil {
		return said
	}
	if stats.Identity == "" { // a gateway
		stats.Waits = missing(ctx, client, bounded(stats.Waits, maxWaiters))
	}
	_, port, _ := net.SplitHostPort(client.Addr())
	said.Server, _ = strconv.Atoi(port)
	said.Time, said.Waits, said.Polls = stats.Time, bounded(stats.Waits, maxWaiters), bounded(stats.Polls, maxWaiters)
	return said
}

// missing leaves out waits for keys that are there: a gateway names all keys of a wait.
func missing(ctx context.Context, client *tcpstore.Client, waits []tcpstore.Wait) []tcpstore.Wait {
	there := map[string]bool{}
	return slices.DeleteFunc(waits, func(w tcpstore.Wait) bool {
		if _, asked := there[w.Key]; !asked && !w.Barrier {
			there[w.Key], _ = client.Check(ctx, w.Key) // of one that cannot be asked the wait stays
		}
		return there[w.Key] && !w.Barrier
	})
}

// maxWaiters bounds the waits of a store that are looked at.
const maxWaiters = 256

// Waiters tells the ranks of those who wait for keys of a store. server is its port, and ranks are the processes that are known.
func Waiters(stats tcpstore.Stats, server int, ranks map[int]int) []verdict.Wait {
	said := storeSaid{Server: server, Time: stats.Time, Waits: bounded(stats.Waits, maxWaiters)}
	waits, _ := said.byRank(nil, ranks)
	return waits
}

// byRank finds out which ranks the clients are. sockets are those of the ranks' processes, as far as they were read: the other
// processes of the host are searched only for clients that none of these is.
func (said storeSaid) byRank(sockets *portowner.Sockets, ranks map[int]int) (waits, polls []verdict.Wait) {
	owners, unknown := map[netip.AddrPort]portowner.Owner{}, []netip.AddrPort(nil)
	for _, w := range slices.Concat(said.Waits, said.Polls) {
		addr := clientAddr(w)
		if pid := sockets.Client(said.Server, addr); pid != 0 {
			owners[addr] = portowner.Owner{PID: pid}
		} else if addr.IsValid() && ctxdial.OwnAddress(addr.Addr()) {
			unknown = append(unknown, addr)
		}
	}
	if len(unknown) > 0 {
		maps.Copy(owners, portowner.Clients(said.Server, unknown))
	}
	named := func(all []tcpstore.Wait) (out []verdict.Wait) {
		for _, w := range all {
			wait := verdict.Wait{Key: w.Key, Rank: -1, Age: said.Time.Sub(w.Since), Asks: w.Asks, Answer: w.Answer}
			owner := owners[clientAddr(w)]
			if rank, known := ranks[owner.PID]; known {
				wait.Rank = rank
			} else if rank, err := strconv.Atoi(owner.Rank); err == nil {
				wait.Rank = rank
			}
			out = append(out, wait)
		}
		return out
	}
	return named(said.Waits), named(said.Polls)
}

// clientAddr is the address of a client, not valid if it has none.
func clientAddr(w tcpstore.Wait) netip.AddrPort {
	addr, err := netip.ParseAddrPort(w.Waiter)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// bounded returns the first of a list.
func bounded[T any](all []T, most int) []T { return all[:min(len(all), most)] }

// maxMembers bounds the ranks that are named.
const maxMembers = 8

// Members asks a store which Go ranks use it and returns a few of them in words. There are none of a store of PyTorch, or where
// no rank has said who it is.
func Members(ctx context.Context, client *tcpstore.Client) []string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	stats, err := client.Stats(ctx)
	if err != nil {
		return nil // a store of PyTorch: it can be reached, which is all it tells
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(stats.Claims)) {
		if claim := stats.Claims[name]; claim.Held && len(all) < maxMembers {
			who, _, _ := strings.Cut(claim.Text, " #")
			all = append(all, strings.Replace(name, "/", " ", 1)+" is "+who)
		}
	}
	return all
}
