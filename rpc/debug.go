// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

// DebugInfo returns the sizes of the agent's tables. Keys that PyTorch has too have its names. It corresponds to
// torch.distributed.rpc.api._get_debug_info.
func (a *Agent) DebugInfo() map[string]int {
	info := map[string]int{}
	if a.refs != nil {
		c := a.refs.Counts()
		info["num_owner_rrefs"] = c.OwnerRRefs
		info["num_pending_futures"] = c.PendingFutures
		info["num_pending_users"] = c.PendingUsers
		info["num_forks"] = c.Forks
		info["num_confirmed_users"] = c.ConfirmedUsers
		info["num_failed_users"] = c.FailedUsers
		info["num_pending_children"] = c.PendingChildren
		info["num_pending_owners"] = c.PendingOwners
		info["num_local_uses"] = c.LocalUses
		info["num_offers"] = c.Offers
		info["num_unsettled"] = c.Unsettled
		info["num_collected_rrefs"] = int(a.refs.Collected.Load())
	}
	serving, running, waiting := a.server.Counts()
	info["agent.thread_pool_size"] = a.cfg.concurrency
	info["agent.num_idle_threads"] = max(0, a.cfg.concurrency-running)
	info["agent.client_active_calls"] = int(a.caller.InFlight.Load())
	info["agent.server_active_calls"] = serving
	info["agent.server_active_async_calls"] = 0 // they are counted with the others
	info["agent.server_waiting_calls"] = waiting
	info["num_current_backward_passes"], info["num_autograd_contexts"] = 0, 0
	if a.extension != nil {
		maps.Copy(info, a.extension.Counts())
	}
	return info
}

// PeerStats counts the traffic with one worker.
type PeerStats struct {
	Calls         uint64 // requests sent
	Served        uint64 // requests received
	Errors        uint64 // calls that failed
	BytesSent     uint64
	BytesReceived uint64
}

// Stats returns the traffic with every worker by name.
func (a *Agent) Stats() map[string]PeerStats {
	all := map[string]PeerStats{}
	for _, p := range a.net.Members() {
		all[p.Name] = PeerStats(p.Stats.Snapshot())
	}
	return all
}

// ObjectInfo describes an object that a worker owns on behalf of others.
type ObjectInfo struct {
	ID      string     `json:"id"`
	Type    string     `json:"type"`
	Created string     `json:"created"` // by what
	Age     float64    `json:"age"`     // seconds
	Size    int        `json:"size"`    // bytes of its tensors, 0 if unknown
	Ready   bool       `json:"ready"`
	Error   string     `json:"error,omitempty"` // of the function that should have made it
	Local   int        `json:"local"`           // uses by the owner itself
	Forks   []ForkInfo `json:"forks"`
	Holds   []HoldInfo `json:"holds,omitempty"` // references inside its value; see [Cycles]
}

// ForkInfo describes one reference to an object, as its owner knows it.
type ForkInfo struct {
	ID     string  `json:"id"`
	Holder string  `json:"holder"`
	Age    float64 `json:"age"`    // seconds
	Silent float64 `json:"silent"` // seconds since its holder was last heard from
}

// HandleInfo describes a reference that a worker holds.
type HandleInfo struct {
	ID      string  `json:"id"`
	Fork    string  `json:"fork"`
	Owner   string  `json:"owner"`
	State   string  `json:"state"`
	Created string  `json:"created"`
	Age     float64 `json:"age"`
	Pins    int     `json:"pins"` // children that have not accepted
}

// ReferenceInfo is everything that a worker knows about references.
type ReferenceInfo struct {
	Worker  string       `json:"worker"`
	Objects []ObjectInfo `json:"objects"`
	Handles []HandleInfo `json:"handles"`
}

// References describes the objects that this worker owns and the references that it holds: who holds what, since when,
// and where it was created.
func (a *Agent) References() ReferenceInfo {
	info := ReferenceInfo{Worker: a.name, Objects: []ObjectInfo{}, Handles: []HandleInfo{}}
	if a.refs == nil {
		return info
	}
	known := a.refs.State()
	for _, o := range known.Objects {
		x := ObjectInfo{ID: o.ID.String(), Age: o.Age.Seconds(), Ready: o.Valued, Local: o.Local, Forks: []ForkInfo{}}
		if v := known.Values[o.ID]; v != nil {
			value, err := v.Peek()
			if err != nil && o.Valued {
				x.Error = err.Error()
			}
			x.Holds = a.cfg.holds(v)
			x.Created, x.Size, x.Age = known.Where[o.ID], v.Bytes(), time.Since(v.Since).Seconds()
			switch {
			case value != nil:
				x.Type = fmt.Sprintf("%T", value)
			case o.Valued && err == nil:
				x.Type = "None"
			}
		}
		for _, f := range o.Forks {
			x.Forks = append(x.Forks, ForkInfo{
				ID: f.Fork.String(), Holder: a.nameOf(f.Holder), Age: f.Age.Seconds(),
				Silent: f.Silent.Seconds(),
			})
		}
		info.Objects = append(info.Objects, x)
	}
	for _, h := range known.Handles {
		info.Handles = append(info.Handles, HandleInfo{
			ID: h.ID.String(), Fork: h.Fork.String(), Owner: a.nameOf(h.Owner), State: h.State, Created: known.Where[h.Fork],
			Age: h.Age.Seconds(), Pins: len(h.Children),
		})
	}
	return info
}

func (a *Agent) nameOf(id rrefcore.Worker) string {
	if id == a.id {
		return a.name
	}
	if p := a.net.PeerByID(id); p != nil {
		return p.Name
	}
	return fmt.Sprintf("worker %d", id)
}

// leakError reports references to own objects that were not released.
func (a *Agent) leakError() error {
	if a.refs == nil || a.cfg.client {
		return nil
	}
	var lines []string
	for _, o := range a.References().Objects {
		for _, f := range o.Forks {
			lines = append(lines, fmt.Sprintf("%s (%s, created by %s) with fork %s held by %s for %.1f s", o.ID, o.Type, o.Created,
				f.ID, f.Holder, f.Age))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	slices.Sort(lines)
	a.cfg.logger.Warn("leaked references", slog.String("worker", a.name), slog.Int("count", len(lines)), slog.Any("references", lines))
	if !a.cfg.strict {
		return nil
	}
	e := cohort.Newf("rpc: shutdown", cohort.Aborted, "leaking %d references: %s", len(lines), strings.Join(lines, "; "))
	e.Key = a.name
	return e
}

// debugServer answers queries about a worker. Nothing depends on it.
type debugServer struct {
	// Calls is where the worker notes its calls; nil if they cannot be queried.
	Calls  *flightrec.Calls
	server *controlsock.Server
}

// serveDebug serves queries about a worker until Close, if its control socket can be made.
func serveDebug(worker string, logger *slog.Logger) *debugServer {
	calls := flightrec.NewCalls()
	server, err := controlsock.ServeOwn(controlsock.Answers{"stacks": controlsock.Stacks, "trace": func(context.Context) ([]byte, error) {
		host, _ := os.Hostname()
		w := &flightrec.Worker{Name: worker, Host: host, PID: os.Getpid()}
		w.Calls, w.More = calls.Oldest()
		d := flightrec.NewDump(time.Now(), "asked")
		d.Worker = w
		return json.Marshal(d)
	}})
	if err != nil {
		logger.Info("no debug socket: the calls that this worker waits for cannot be queried", slog.Any("error", err))
	}
	if server == nil {
		return &debugServer{}
	}
	return &debugServer{Calls: calls, server: server}
}

// Close ends it.
func (a *debugServer) Close() { a.server.Close() }
