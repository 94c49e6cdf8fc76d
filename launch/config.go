// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/pytemplate"
	"github.com/cohort-dist/cohort/internal/sys/numabind"
	"github.com/cohort-dist/cohort/internal/sys/signame"
)

// How says how the program of a job is run.
type How int

// The ways to run a program.
const (
	// Auto runs a .py file, and a file that is not executable, with Python and executes anything else.
	Auto How = iota
	// Script runs a file with Python.
	Script
	// Module runs a Python module: python -m.
	Module
	// Executable executes the program.
	Executable
)

// Hosting says whether a launcher hosts the rendezvous of a job on several nodes. It corresponds to torchrun's
// --rdzv-conf is_host.
type Hosting int

// Whether to host the rendezvous.
const (
	// HostAuto hosts it if the address of the endpoint is one of this machine.
	HostAuto Hosting = iota
	HostAlways
	HostNever
)

// Std is a set of streams. It corresponds to torch.distributed.elastic.multiprocessing.Std, with the same numbers.
type Std int

// The streams of a worker.
const (
	StdNone Std = 0
	StdOut  Std = 1
	StdErr  Std = 2
	StdAll  Std = 3
)

// StdMap chooses streams for each local rank: All applies to those that are not in Ranks.
type StdMap struct {
	All   Std
	Ranks map[int]Std
}

// Of returns the choice for a local rank.
func (m StdMap) Of(local int) Std {
	if s, found := m.Ranks[local]; found {
		return s
	}
	return m.All
}

// any reports whether some stream is chosen.
func (m StdMap) any() bool {
	for _, s := range m.Ranks {
		if s != StdNone {
			return true
		}
	}
	return m.All != StdNone
}

// Config describes a job. The zero value of a field means its default.
type Config struct {
	// Program is the program with its arguments. Each is a Python string.Template: ${local_rank} is replaced, $$ is $.
	Program []string
	How     How
	// Python is the interpreter; default: PYTHON_EXEC, or python3 of the PATH.
	Python string

	// Roles are several programs with their workers, in place of Program, How, Python, Workers and Role.
	Roles []Role

	// Workers is the number of workers on this node.
	Workers int
	// MaxRestarts is how often the job is restarted after a failure.
	MaxRestarts int
	// Role is the workers' role; default "default".
	Role string
	// RunID names the job; default: random.
	RunID string

	// MinMembers and MaxMembers are the size of a group whose members change while their processes keep running; 0: there is no
	// such group. Its coordinator (package elastic) runs in the launcher, over the job's store. The other workers are spares, and
	// the job fails when fewer than MinMembers workers are left. MinMembers is MaxMembers by default. If MaxNodes is above one,
	// the members are on several nodes, and the store and the coordinator are at the Endpoint: in the launcher with that address,
	// or in the process whose store already listens there.
	MinMembers, MaxMembers int

	// MasterAddr and MasterPort are where the workers find the store; default: the loopback address and a free port.
	MasterAddr string
	MasterPort int

	// MinNodes and MaxNodes are the number of nodes; default 1. With more than one, Endpoint is where they meet, an
	// address and port of one of them, whose launcher hosts the rendezvous and the store.
	MinNodes, MaxNodes int
	Endpoint           string
	// Host says whether this launcher hosts the rendezvous.
	Host Hosting
	// LocalAddr is the address of this node at which the workers of all nodes find the store, if this launcher hosts the rendezvous of
	// several nodes; default: that of the endpoint or, with a store as the endpoint, the one that leads to it. It corresponds to
	// torchrun's --local-addr.
	LocalAddr string
	// NodeRank is the number that this node asks for; nil: any.
	NodeRank *int
	// StorePort is the port of the store of a job on several nodes; 0: a free one.
	StorePort int
	// JoinTimeout bounds the wait for MinNodes nodes; default 10 min. LastCall is how long a job with MinNodes, but not
	// MaxNodes, waits for more; default 30 s. A node that has given no sign of life for Silence is given up; default 5 s.
	JoinTimeout, LastCall, Silence time.Duration

	// Grace is the time between the signal that ends a worker and SIGKILL; default 30 s.
	Grace time.Duration
	// Linger is how long a failed job waits for the worker that caused the failure of another to end by itself; default
	// 5 s. Negative: not at all.
	Linger time.Duration
	// Interrupt is how long a worker may ignore SIGINT before it is sent SIGTERM; default 2 s.
	Interrupt time.Duration
	// SignalNames is the value of TORCHELASTIC_SIGNALS_TO_HANDLE; default: torchrun's.
	SignalNames string

	// HangTimeout is how long ranks that wait for each other may make no progress before the job counts as hung; 0: it is
	// not watched. HangKill then stops the job, which counts as a failure.
	HangTimeout time.Duration
	HangKill    bool

	// LogDir is the folder of log files; default: a temporary one that is removed at the end.
	LogDir string
	// Redirects are the streams that go to files, Tee those that go to files and to the screen.
	Redirects, Tee StdMap
	// ShowRanks are the local ranks whose output is shown; nil: all.
	ShowRanks []int
	// Prefix is the template of the prefix of lines that are teed; default "[${role_name}${local_rank}]:".
	Prefix string
	// StdoutFilters and StderrFilters select lines of teed streams that go to one more file, of all ranks together.
	StdoutFilters, StderrFilters []string

	// NUMABinding binds each worker to processors near the accelerator that has its local rank: "node", "socket", "exclusive" or
	// "core-complex", as torchrun's --numa-binding; "": to none.
	NUMABinding string
	// Events prints what happens as JSON on the screen's Err, as torchrun's --event-log-handler console. Backend is what they call the
	// rendezvous; default "c10d".
	Events  bool
	Backend string

	// VirtualLocalRank gives every worker LOCAL_RANK 0 and one visible device.
	VirtualLocalRank bool
	// NoShim keeps our code out of Python workers. Rank 0 then hosts the workers' store.
	NoShim bool
	// EvidenceDir is the folder in which evidence of failures is kept; default: $XDG_STATE_HOME/cohort/evidence, or that folder
	// below ~/.local/state. NoEvidence keeps none.
	EvidenceDir string
	NoEvidence  bool

	// Keeper is the command line, with the name of this program first, that leads to [KeeperMain]. Required.
	Keeper []string

	ending map[int]bool // the signals of SignalNames
	cpus   [][]int      // of each worker, if there is a NUMABinding
}

// withDefaults returns the configuration with its defaults, or says what is wrong.
func (c Config) withDefaults() (Config, error) {
	if len(c.Roles) == 0 && (len(c.Program) == 0 || c.Program[0] == "") {
		return c, refuse("no program to run")
	}
	if len(c.Keeper) == 0 {
		return c, refuse("Config.Keeper is not set")
	}
	if c.Workers <= 0 && len(c.Roles) == 0 {
		return c, refuse("%d workers; there must be at least one", c.Workers)
	}
	if c.MaxRestarts < 0 {
		return c, refuse("%d restarts; 0 is the least", c.MaxRestarts)
	}
	if strings.ContainsAny(c.RunID, "/\x00\n") {
		return c, refuse("the job's id %q is used in file names and must not hold a slash or a line end", c.RunID)
	}
	setDefault(&c.MinNodes, 1)
	setDefault(&c.MaxNodes, c.MinNodes)
	setDefault(&c.MinMembers, c.MaxMembers)
	if err := takeRoles(&c); err != nil {
		return c, err
	}
	for _, r := range c.ShowRanks {
		if r < 0 || r >= c.Workers {
			return c, refuse("there is no local rank %d to show: this node has %d workers", r, c.Workers)
		}
	}
	if err := c.checkNodes(); err != nil {
		return c, err
	}
	if err := c.checkMembers(); err != nil {
		return c, err
	}
	if c.MaxNodes > 1 {
		setDefault(&c.RunID, "none") // torchrun's default, the same on all nodes
	}
	setDefault(&c.JoinTimeout, 10*time.Minute)
	setDefault(&c.LastCall, 30*time.Second)
	setDefault(&c.Silence, 5*time.Second)
	setDefault(&c.RunID, randomID()[:16])
	setDefault(&c.Grace, 30*time.Second)
	setDefault(&c.Linger, 5*time.Second)
	setDefault(&c.Interrupt, 2*time.Second)
	setDefault(&c.Backend, "c10d")
	setDefault(&c.SignalNames, "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
	signals, err := signame.Parse(c.SignalNames)
	if err != nil {
		return c, refuse("--signals-to-handle: %w", err)
	}
	c.ending = map[int]bool{}
	for _, s := range signals {
		c.ending[int(s)] = true
	}
	setDefault(&c.Prefix, "[${role_name}${local_rank}]:")
	if c.cpus, err = numabind.Plan(c.NUMABinding, c.Workers); err != nil {
		return c, refuse("--numa-binding %s: %w", c.NUMABinding, err)
	}
	return c, c.checkEnvironment()
}

// randomID returns random letters and digits for names.
func randomID() string { return strings.ToLower(rand.Text()) }

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// command returns the command line of a worker.
func (c Config) command(local int) []string {
	var args []string
	role, _ := c.roleOf(local)
	switch role.How {
	case Script:
		args = []string{role.Python, "-u"}
	case Module:
		args = []string{role.Python, "-u", "-m"}
	case Auto, Executable:
	}
	for _, a := range role.Program {
		args = append(args, pytemplate.Substitute(a, map[string]string{"local_rank": strconv.Itoa(local)}))
	}
	return args
}

// ParseStd reads a value of torchrun's --redirects and --tee: "3", or "0:1,2:3" for single local ranks. Unlike torchrun
// it takes ranks above 9.
func ParseStd(text string) (StdMap, error) {
	one := func(s string) (Std, error) {
		v, err := strconv.Atoi(s)
		if err != nil || v < 0 || v > 3 {
			return 0, refuse("%q is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)", s)
		}
		return Std(v), nil
	}
	if text == "" {
		return StdMap{}, nil
	}
	if !strings.Contains(text, ":") {
		v, err := one(text)
		return StdMap{All: v}, err
	}
	m := StdMap{Ranks: map[int]Std{}}
	for part := range strings.SplitSeq(text, ",") {
		rank, value, _ := strings.Cut(part, ":")
		r, err := strconv.Atoi(rank)
		if err != nil || r < 0 {
			return m, refuse("%q is not RANK:VALUE", part)
		}
		v, err := one(value)
		if err != nil {
			return m, err
		}
		m.Ranks[r] = v
	}
	return m, nil
}

// shown reports whether the output of a local rank is shown.
func (c Config) shown(local int) bool {
	return c.ShowRanks == nil || slices.Contains(c.ShowRanks, local)
}
