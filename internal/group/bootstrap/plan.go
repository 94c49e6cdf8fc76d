// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package bootstrap forms a group: its ranks find each other through a store, agree on a transport and connect, all of them or none,
// attempt after attempt. With PyTorch ranks it does what they do, and finds out what they can do. It ends when the
// group exists, except that the ranks later agree through the same store on the reason for the group's end.
package bootstrap

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/native/lanes"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

// Transport is how the ranks of a group exchange data.
type Transport string

// The transports.
const (
	Auto         Transport = "auto"
	tcp          Transport = "tcp"
	SharedMemory Transport = "shm"
	Gloo         Transport = "gloo"
)

// What may be said about the peers beside a version of PyTorch.
const (
	AnyPeers = ""
	OnlyGo   = "go"
)

// Options are what a user says about the forming of a group.
type Options struct {
	Name           string
	Transport      Transport
	Peers          string // [AnyPeers], [OnlyGo] or a version of PyTorch
	ConnectTimeout time.Duration
	Heartbeat      time.Duration
	Logger         *slog.Logger
	Hook           observe.Hook
	StoreAddr      string // of the store's server, "" where it is not known
	Devices        []string
	Connections    int // between two Go ranks; 0 if the user says nothing
	InitBarrier    bool
	BareStore      bool   // PyTorch's keys have no prefix of their own
	Prefix         string // of all keys
	Detail         bool   // PyTorch ranks compare operations before they run
}

// Check checks the options, and adds what the environment says.
func (o *Options) Check(op string) error {
	switch o.Transport {
	case Auto, tcp, SharedMemory, Gloo:
	default:
		return cohort.Newf(op, cohort.InvalidArgument, "transport %q: want auto, tcp, shm or gloo", o.Transport)
	}
	if o.Peers != AnyPeers && o.Peers != OnlyGo {
		if _, _, err := parsePeers(o.Peers); err != nil {
			return cohort.Newf(op, cohort.InvalidArgument, "peers %q: %v", o.Peers, err)
		}
	}
	if err := o.checkConnections(op); err != nil {
		return err
	}
	if len(o.Devices) == 0 {
		o.Devices = gloo.DevicesFromEnv(os.Getenv)
	}
	switch level := os.Getenv(collective.DebugVariable); strings.ToUpper(level) {
	case "", "OFF", "INFO":
	case "DETAIL":
		o.Detail = true
	default:
		// PyTorch refuses it too. A typing mistake would leave this rank out of the checks that the others wait for.
		return cohort.Newf(op, cohort.InvalidArgument, "%s=%q: want OFF, INFO or DETAIL", collective.DebugVariable, level)
	}
	return nil
}

// connectionsVariable is the option in the environment.
const connectionsVariable = "COHORT_CONNECTIONS"

func (o *Options) checkConnections(op string) error {
	if text := os.Getenv(connectionsVariable); o.Connections == 0 && text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > lanes.Max {
			return cohort.Newf(op, cohort.InvalidArgument, "%s=%q: want a number from 1 to %d", connectionsVariable, text, lanes.Max)
		}
		o.Connections = n
	}
	if o.Connections < 0 || o.Connections > lanes.Max {
		return cohort.Newf(op, cohort.InvalidArgument, "%d connections between two ranks: want 1 to %d", o.Connections, lanes.Max)
	}
	return nil
}

// Said is what the options say about the PyTorch ranks. It is none if they say nothing, or that there are none.
func (o *Options) Said() torchcaps.Peers {
	if o.Peers == AnyPeers || o.Peers == OnlyGo {
		return torchcaps.Peers{}
	}
	p, _, _ := parsePeers(o.Peers)
	return p
}

// parsePeers reads one version of PyTorch or several.
func parsePeers(said string) (p torchcaps.Peers, newer bool, err error) {
	p, newer, ok := torchcaps.ParsePeers(said)
	switch {
	case !ok:
		return torchcaps.Peers{}, false,
			errors.New("want go, or a version of PyTorch from torch-1.13 on, or several as in torch-2.6,torch-2.14")
	case p.Several && p.Low == torchcaps.V1_13:
		return torchcaps.Peers{}, false, errors.New("PyTorch up to 2.2 cannot be in one group with a newer one")
	}
	return p, newer, nil
}

// Plan is a group that is to be formed.
type Plan struct {
	Options
	Store     store.Store
	Rank      int     // in the group, less than 0 for a rank that is not a member
	Globals   []int   // world ranks of the members
	World     int     // number of ranks in the world
	Parent    *Formed // the group that it is made from, or nil
	Index     int     // number of the group in its world
	TorchName string  // PyTorch's name of the group
	Origin    Origin
	UUID      int64 // of a reconfiguration
	Former    Former

	missing []int  // ranks that had not come or connected when an attempt ended
	awaited string // what they had not done
	dead    []int  // ranks that had joined and then died
	silent  error  // why the store did not report who they are
	repeats bool   // this rank was in a group with PyTorch ranks under the same keys before

	last   *assemble.Place // in the attempt before
	rivals rivals          // processes that have taken the place of this rank
	hints  string          // for the error of a rank whose time is over, see attempt.hints
}

func (p *Plan) size() int { return len(p.Globals) }

// Make connects the ranks of a group. When an attempt is given up by a rank, which may be another process by now, all
// others try again with it.
func Make(ctx context.Context, p *Plan) (*Formed, error) {
	ctx, cancel := context.WithTimeout(ctx, p.ConnectTimeout)
	defer cancel()
	if p.StoreAddr == "" {
		p.StoreAddr = AddrOf(p.Store)
	}
	p.rivals = rivals{own: rand.Text(), seen: map[string]rival{}}
	for {
		f, err := try(ctx, p)
		if err == nil {
			return f, nil
		}
		if err = p.failed(ctx, err); err != nil {
			return nil, p.explainEarlier(err)
		}
		p.Logger.Info("a rank gave up this attempt to make the group; trying again", slog.String("group", p.Name))
	}
}

// failed returns why the group cannot be made after an attempt that has failed, or nil if it is to be tried again.
func (p *Plan) failed(ctx context.Context, err error) error {
	over := errors.Is(err, assemble.ErrAttemptAbandoned)
	switch {
	case !over && absent(cohort.CodeOf(err)) && rankOf(err) != cohort.NoRank:
		return err
	case ctx.Err() != nil && len(p.missing) > 0: // wherever in the last attempt it ended
		return p.tooLate(ctx)
	case !over:
		return err
	case ctx.Err() != nil:
		return cohort.FromContext(ctx, "group: new")
	case p.Origin.once():
		return p.gaveUp(ctx)
	}
	return nil
}

// route returns where the store is, for the choice of the address by which this host is reached.
func (p *Plan) route() string { return ctxdial.Towards(store.UnderlyingNonPrefix(p.Store)) }

// AddrOf returns the address of a store's server, "" where it has none.
func AddrOf(s store.Store) string {
	if a, ok := store.UnderlyingNonPrefix(s).(interface{ Addr() string }); ok {
		return a.Addr()
	}
	return ""
}

// Origin is how a group came about. It decides under which keys PyTorch's ranks look for each other, and what they do in
// the store around it.
type Origin uint8

// The origins.
const (
	FromPython      Origin = iota // init_process_group or new_group
	FromSplit                     // ProcessGroup.split_group
	FromMerge                     // ProcessGroup.merge_remote_group
	FromReconfigure               // reconfigure
)

// ErrGaveUp ends an attempt that cannot be repeated.
var ErrGaveUp = errors.New("a rank abandoned the creation of this group")

// gaveUp is the error of an attempt that a rank gave up and that cannot be repeated. It names the rank that did so first, and blames one
// that had not come by then, if there is one.
func (p *Plan) gaveUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, judgeLimit)
	defer cancel()
	who, rank := "a rank", cohort.NoRank
	before := ""
	if first, missing, err := assemble.FirstToGiveUp(ctx, p.Store, p.keys(), p.size()); err == nil && first >= 0 && first != p.Rank {
		who, rank = "rank "+strconv.Itoa(first), cohort.Rank(first)
		if len(missing) > 0 {
			before = " before " + ranklist.Named(missing) + " had come"
		}
		if late := slices.DeleteFunc(missing, func(r int) bool { return r == p.Rank }); len(late) > 0 {
			rank = cohort.Rank(late[0])
		}
	}
	does := " abandoned the reconfiguration or has closed its group%s: reconfigure again, with another uuid, and without that rank if " +
		"it has left"
	if p.Origin == FromMerge {
		does = " abandoned the merge%s: merge again, over another store or with a prefix of its own"
	}
	return &cohort.Error{Op: "group: new", Code: cohort.Unavailable, Rank: rank, Detail: who + fmt.Sprintf(does, before), Err: ErrGaveUp}
}

// once reports whether there is only one attempt to make the group: a rank that gave up cannot come again under the same
// number.
func (o Origin) once() bool { return o == FromMerge || o == FromReconfigure }

// decline notifies the others that this rank, which has not joined yet, will not.
func (p *Plan) decline(ctx context.Context) {
	if p.Origin.once() && p.size() > 1 {
		_ = assemble.Decline(ctx, p.Store, p.keys(), p.Rank, p.size())
	}
}

// base is the prefix of the store that PyTorch's ranks have for the group.
func (p *Plan) base(layout gloo.Layout) string {
	switch p.Origin {
	case FromSplit:
		return gloo.SplitBase(p.Parent.Base, p.TorchName)
	case FromMerge:
		return p.Prefix
	case FromPython, FromReconfigure:
	}
	return layout.GroupBase(p.torchBase(), p.TorchName)
}

// meshPrefix is where PyTorch's ranks publish their addresses.
func (p *Plan) meshPrefix(layout gloo.Layout) string {
	switch p.Origin {
	case FromPython:
		return layout.MeshPrefix(p.torchBase(), p.TorchName)
	case FromReconfigure:
		return gloo.ReconfigurePrefix(layout.MeshPrefix(p.torchBase(), p.TorchName), p.UUID)
	case FromSplit, FromMerge:
	}
	return p.base(layout)
}
