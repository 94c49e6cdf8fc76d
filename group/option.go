// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/observe"
)

// DefaultTimeout bounds an operation without its own timeout. It is PyTorch's default for gloo.
const DefaultTimeout = 30 * time.Minute

// DefaultQueue is how many posted operations may be incomplete at a time.
const DefaultQueue = 1024

// Transport is how the ranks of a group exchange data.
type Transport string

// The transports.
const (
	// Auto takes shared memory where all ranks are Go processes of one host, the native TCP wire where all are Go, and
	// gloo's wire where a PyTorch rank takes part.
	Auto Transport = "auto"
	// TCP is the native wire between Go ranks.
	TCP Transport = "tcp"
	// SharedMemory is for Go ranks of one host.
	SharedMemory Transport = "shm"
	// Gloo is PyTorch's wire.
	Gloo Transport = "gloo"
)

// Peers says what kind of PyTorch the other ranks may be; see [WithPeers].
type Peers string

// The kinds of peers.
const (
	// AnyPeers finds out from the store.
	AnyPeers Peers = ""
	// OnlyGo promises that all ranks are Go processes: nothing of gloo's rendezvous is looked at.
	OnlyGo Peers = "go"
	// Torch113 is PyTorch 1.13 to 2.2.
	Torch113 Peers = "torch-1.13"
	// Torch26 is PyTorch 2.3 to 2.7.
	Torch26 Peers = "torch-2.6"
	// Torch28 is PyTorch 2.8.
	Torch28 Peers = "torch-2.8"
	// Torch29 is PyTorch 2.9.
	Torch29 Peers = "torch-2.9"
	// Torch210 is PyTorch 2.10.
	Torch210 Peers = "torch-2.10"
	// Torch211 is PyTorch 2.11.
	Torch211 Peers = "torch-2.11"
	// Torch212 is PyTorch 2.12 and 2.13.
	Torch212 Peers = "torch-2.12"
	// Torch214 is PyTorch 2.14, and what is newer.
	Torch214 Peers = "torch-2.14"
)

// EventWait is emitted while a rank waits for others to form a group: first after a few seconds, then rarely. Its Detail
// says who is missing.
const EventWait observe.Kind = "group.wait"

// Option changes how a group is made. The same options go to [New] and [Group.NewGroup] (an option that does not concern
// the latter is ignored there).
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	bootstrap.Options // with a Hook that calls hook
	hook              observe.Hook
	description       string
	timeout           time.Duration
	queue             int
	records           int
	dump              func(reason string, json []byte)
	dumpDir           string
	dumpSignals       []os.Signal
	localSync         bool
	rankOrder         bool // of a sub-group: as given
	reconfigure       bool
	profile           func(*Work)
}

func newConfig(opts []Option) config {
	c := config{
		Options: bootstrap.Options{Transport: bootstrap.Auto, Logger: safecall.Logger(nil)}, timeout: DefaultTimeout,
		queue: DefaultQueue,
	}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	if c.queue < 1 {
		c.queue = DefaultQueue
	}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = c.timeout
	}
	c.Hook = safecall.Hook(c.Logger, c.hook)
	return c
}

// WithName names the group in errors, events and dumps. Among Go ranks it is also part of the store's keys, so that several
// groups can be made over one store; groups with PyTorch ranks have the names that PyTorch gives them.
func WithName(name string) Option { return option(func(c *config) { c.Name = name }) }

// WithDescription sets a description for people to read. It corresponds to group_desc.
func WithDescription(text string) Option { return option(func(c *config) { c.description = text }) }

// WithTransport forces a transport. All ranks must agree.
func WithTransport(t Transport) Option {
	return option(func(c *config) { c.Transport = bootstrap.Transport(t) })
}

// WithPeers says what the other ranks are. PyTorch's version is not on the wire, and detection may leave several versions
// possible, above all if a Go process hosts the store. Operations that these versions run differently are refused unless
// the version is given with this option or the variable COHORT_TORCH (such as 2.14.1). Any version may be given, such as
// "torch-2.11".
//
// A group may have PyTorch ranks of several versions from 2.3 on. Name all of them then ("torch-2.6,torch-2.14"): what
// they do not run alike is refused. If PyTorch hosts the store, its version is otherwise taken for that of all ranks,
// except where another version would compute something else without an error. A group that [Group.NewGroup] makes of
// fewer ranks can be given its own versions.
func WithPeers(p Peers) Option { return option(func(c *config) { c.Peers = string(p) }) }

// WithTimeout bounds each operation of a group (an option of [New]) or one operation. It corresponds to timeout= of
// init_process_group. The default is [DefaultTimeout].
func WithTimeout(d time.Duration) interface {
	Option
	OpOption
} {
	return timeoutOption(d)
}

type timeoutOption time.Duration

func (o timeoutOption) apply(c *config)     { c.timeout = time.Duration(o) }
func (o timeoutOption) applyOp(c *opConfig) { c.timeout = time.Duration(o) }

// WithConnectTimeout bounds the forming of the group, unless ctx has an earlier deadline. The default is the group's
// timeout.
func WithConnectTimeout(d time.Duration) Option {
	return option(func(c *config) { c.ConnectTimeout = d })
}

// WithHeartbeat sets how long a Go rank may be silent before it counts as lost: a stopped process, a cut network. Less than
// zero switches it off. All ranks should use the same. gloo's wire has no heartbeat.
func WithHeartbeat(limit time.Duration) Option {
	return option(func(c *config) { c.Heartbeat = limit })
}

// WithQueue bounds the number of posted operations that are not complete. At the limit, posting waits until there is room
// or its ctx ends.
func WithQueue(n int) Option { return option(func(c *config) { c.queue = n }) }

// WithFlightRecorder sets how many operations the flight recorder remembers. It is always on.
func WithFlightRecorder(operations int) Option {
	return option(func(c *config) { c.records = operations })
}

// WithDump calls f with the flight recorder's JSON dump when the group fails. f runs in a goroutine of the group that Close
// waits for. A panic in it is logged as [WithHook] says.
func WithDump(f func(reason string, json []byte)) Option {
	return option(func(c *config) { c.dump = f })
}

// WithLogger sets the logger that gets which transport and address the group chose, and why.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) { c.Logger = safecall.Logger(l) })
}

// WithHook sets the hook that receives an event for every operation. A panic in it is logged, as in all functions that a group
// is given: by the logger of [WithLogger], or else by [slog.Default].
func WithHook(h observe.Hook) Option { return option(func(c *config) { c.hook = h }) }

// WithProfiler calls f at the end of every operation, once. f must not block. A panic in it is logged as [WithHook] says.
func WithProfiler(f func(*Work)) Option { return option(func(c *config) { c.profile = f }) }

// WithDevices sets the interfaces or IP addresses of this rank. With PyTorch ranks, all ranks need the same number. It
// corresponds to GLOO_SOCKET_IFNAME, which is used when this option is not given.
func WithDevices(names ...string) Option { return option(func(c *config) { c.Devices = names }) }

// WithConnections sets how many TCP connections two Go ranks have for large messages of collectives, from 1 to 8. The
// ranks use the fewest that any of them asks for. Without it a rank asks for as many as it has cores to itself, at most
// 4. Where the network limits the rate of one connection, more may be faster. It corresponds to NCCL_NSOCKS_PERTHREAD
// and COHORT_CONNECTIONS.
func WithConnections(n int) Option { return option(func(c *config) { c.Connections = n }) }

// WithInitBarrier adds PyTorch's store barrier after the making of a group: needed when the PyTorch 2.x ranks run with
// TORCH_DIST_INIT_BARRIER=1.
func WithInitBarrier() Option { return option(func(c *config) { c.InitBarrier = true }) }

// WithBareStore is for a store that PyTorch's ranks gave to init_process_group(store=...) themselves: then their keys have
// no "default_pg" prefix.
func WithBareStore() Option { return option(func(c *config) { c.BareStore = true }) }

// WithStorePrefix puts a prefix in front of all keys, such as "worker/attempt_0" where PyTorch 1.13 runs under torchrun.
func WithStorePrefix(prefix string) Option { return option(func(c *config) { c.Prefix = prefix }) }

// WithDetail checks every collective before it runs, as PyTorch does with TORCH_DISTRIBUTED_DEBUG=DETAIL: the ranks meet and
// compare operation, element types and shapes, and a difference is an error on all of them. A rank in a world of PyTorch
// ranks that run so needs it. It is on when the environment has that variable with that value.
//
// With PyTorch ranks, posting a collective then waits for all ranks, as in PyTorch; a difference leaves the group as it was. Among
// Go ranks operations are always compared; here shapes of flat buffers are too.
func WithDetail() Option { return option(func(c *config) { c.Detail = true }) }

// WithLocalSync makes a sub-group that only its members know of: the other ranks do not call NewGroup. It corresponds to
// use_local_synchronization=True. Members must make overlapping groups in the same order.
func WithLocalSync() Option { return option(func(c *config) { c.localSync = true }) }

// WithRankOrder numbers the ranks of a sub-group in the order in which they are given, and not in increasing order. It
// corresponds to sort_ranks=False, which PyTorch has from 2.14 on.
func WithRankOrder() Option { return option(func(c *config) { c.rankOrder = true }) }

// WithReconfigure makes a group whose members change: [New] then connects nothing and returns at once, and the group that can
// be used is what [Group.Reconfigure] returns. It corresponds to enable_reconfigure=True, which PyTorch has from 2.14 on.
func WithReconfigure() Option { return option(func(c *config) { c.reconfigure = true }) }

// OpOption changes one operation.
type OpOption interface{ applyOp(*opConfig) }

type opConfig struct {
	timeout time.Duration
	waitAll bool
}

type opOption func(*opConfig)

func (o opOption) applyOp(c *opConfig) { o(c) }

// WaitAllRanks makes a monitored barrier wait the whole timeout for each rank, one after the other. It corresponds to
// wait_all_ranks=True.
func WaitAllRanks() OpOption { return opOption(func(c *opConfig) { c.waitAll = true }) }

// Reuse uses the Work of an earlier operation instead of a new one, so that an inner loop allocates nothing. The Work
// must be complete, and nothing else may use it any more.
func Reuse(w *Work) OpOption { return reuseOption{w} }

type reuseOption struct{ work *Work }

func (reuseOption) applyOp(*opConfig) {}

// awaitedOption says that the poster of an operation waits for it at once, so that the timer need not look after it.
type awaitedOption struct{}

func (awaitedOption) applyOp(*opConfig) {}

// awaitedOnly is what most calls on slices have, without memory for each.
var awaitedOnly = []OpOption{awaitedOption{}}

// awaited adds the option to others.
func awaited(opts []OpOption) []OpOption {
	if len(opts) == 0 {
		return awaitedOnly
	}
	return append(slices.Clip(opts), awaitedOption{})
}

// WithFactor is what [PremulSum] multiplies this rank's tensors by. Ranks may give different factors, as weights. It
// corresponds to the factor of torch.distributed's PREMUL_SUM.
func WithFactor(f float64) OpOption { return factorOption(f) }

type factorOption float64

func (factorOption) applyOp(*opConfig) {}

// Uneven allows the tensors of a Gather or Scatter to differ in size or shape from rank to rank. All ranks must give it: only the
// root knows the sizes, and without it other ranks pass on the blocks of others. PyTorch has no counterpart; its gather and
// scatter need tensors of one size, and so does a group with PyTorch ranks.
func Uneven() OpOption { return unevenOption{} }

type unevenOption struct{}

func (unevenOption) applyOp(*opConfig) {}
