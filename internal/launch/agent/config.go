// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/launch/program"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// Config is what package launch has made of its configuration: checked, with all defaults filled in. Fields without a comment are
// those of launch.Config.
type Config struct {
	RunID string
	Roles []Role
	// Workers is the number of workers of all roles on this node.
	Workers     int
	MaxRestarts int

	MinMembers, MaxMembers int // 0: the job has no group whose members change
	MasterAddr             string
	MasterPort             int

	MinNodes, MaxNodes int
	Endpoint           string
	// Host says whether this launcher hosts the rendezvous; nil: if the endpoint is an address of this machine.
	Host      *bool
	LocalAddr string
	// Protection is that of several nodes.
	Protection Protection
	// NodeRank is the number that this node asks for, -1 for any.
	NodeRank                       int
	StorePort                      int
	StoreGateway                   bool
	JoinTimeout, LastCall, Silence time.Duration

	// AllowUIDs are users of this host, beside the job's own and root, whose connections are accepted.
	AllowUIDs []uint32

	Grace, Linger, Interrupt time.Duration
	SignalNames              string
	// Ending are the signals of SignalNames.
	Ending      map[int]bool
	HangTimeout time.Duration
	HangKill    bool

	LogDir string
	// Redirects and Tee are the streams of each local rank.
	Redirects, Tee               []Streams
	ShowRanks                    []int
	Prefix                       string
	StdoutFilters, StderrFilters []string

	// CPUs are the processors of each local rank, if it is bound to some.
	CPUs                     [][]int
	Events                   bool
	Backend                  string
	VirtualLocalRank, NoShim bool
	Supervisor               []string

	Screen  Screen
	Signals <-chan os.Signal
	// Started is when the job began.
	Started time.Time
	// AttemptEnded is called with the end of each attempt and returns a sentence about it.
	AttemptEnded func(Attempt) string
}

// Role is a group of workers that run the same program.
type Role struct {
	Name    string
	Workers int
	// Interpreter is what runs the program, with its options; empty: the program is executed.
	Interpreter []string
	// Program is the program with its arguments, each a Python string.Template.
	Program []string
	Dir     string
	Env     []string
}

// Streams is a set of the streams of a worker.
type Streams int

// The streams.
const (
	streamOut Streams = 1
	streamErr Streams = 2
)

// Screen is where the output of a job goes. The fields are those of launch.Screen.
type Screen struct {
	In       *os.File
	Out, Err io.Writer
	Ranks    bool
	Paint    func(rank cohort.Rank, text string) string
	Show     func(Status)
}

// anyOf reports whether some rank has some stream.
func anyOf(all []Streams) bool {
	return slices.ContainsFunc(all, func(s Streams) bool { return s != 0 })
}

// command returns the command line of a worker.
func (c Config) command(local int) []string {
	role, _ := c.roleOf(local)
	args := slices.Clone(role.Interpreter)
	for _, a := range role.Program {
		args = append(args, substitute(a, map[string]string{"local_rank": strconv.Itoa(local)}))
	}
	return args
}

// CheckPrograms finds programs that do not exist before anything is started. What a module is only Python knows.
func (c Config) CheckPrograms() error {
	checked := map[string]bool{}
	for local := range c.Workers {
		role, _ := c.roleOf(local)
		name := substitute(role.Program[0], map[string]string{"local_rank": strconv.Itoa(local)})
		python := len(role.Interpreter) > 0
		if checked[role.Name+"\n"+name] || python && role.Interpreter[len(role.Interpreter)-1] == "-m" {
			continue
		}
		checked[role.Name+"\n"+name] = true
		if _, err := os.Stat(cmp.Or(role.Dir, ".")); err != nil {
			continue // the supervisor says what is wrong with the folder
		}
		path := os.Getenv("PATH")
		for _, v := range role.Env {
			if own, found := strings.CutPrefix(v, "PATH="); found {
				path = own
			}
		}
		if err := program.Missing(name, path, role.Dir, python); err != nil {
			if len(c.Roles) > 1 {
				return refuse("role %s: a program that does not exist: %w", role.Name, err)
			}
			return refuse("a program that does not exist: %w", err)
		}
	}
	return nil
}

// sizes says how many workers of each role are here.
func (c Config) sizes() []launchcore.Role {
	var all []launchcore.Role
	for _, r := range c.Roles {
		all = append(all, launchcore.Role{Name: r.Name, Workers: r.Workers})
	}
	return all
}

// roleOf returns the role of a worker and its number in the role on this node. Roles have consecutive ranks.
func (c Config) roleOf(local int) (role *Role, number int) {
	for i := range c.Roles {
		if local < c.Roles[i].Workers {
			return &c.Roles[i], local
		}
		local -= c.Roles[i].Workers
	}
	return &c.Roles[len(c.Roles)-1], local
}

// shown reports whether the output of a local rank is shown.
func (c Config) shown(local int) bool {
	return c.ShowRanks == nil || slices.Contains(c.ShowRanks, local)
}

// spread reports whether the members are on several nodes. Their launchers do not need each other then: they share a store and a
// coordinator, at the endpoint, and wait for members only, not for nodes.
func (c Config) spread() bool { return c.MaxMembers > 0 && c.MaxNodes > 1 }

// spares is how many workers of this node may fail.
func (c Config) spares() int {
	switch {
	case c.MaxMembers == 0:
		return 0
	case c.spread():
		return c.Workers - 1 // whether the members of all nodes are enough is for the coordinator to say
	}
	return c.Workers - c.MinMembers
}

// rules are what the nodes of a job agree on.
func (c Config) rules() nodecoord.Rules {
	return nodecoord.Rules{MinNodes: c.MinNodes, MaxNodes: c.MaxNodes, MaxRestarts: c.MaxRestarts}
}

// hosts reports whether this launcher should host the rendezvous: the endpoint is an address of this machine.
func (c Config) hosts(ctx context.Context) bool {
	if c.Host != nil {
		return *c.Host
	}
	name, _, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return ctxdial.IsLocal(ctx, name)
}

// substitute is Python's string.Template(text).safe_substitute(values): $name and ${name} are replaced where the name is
// known, $$ becomes $, everything else stays.
func substitute(text string, values map[string]string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		if text[i] != '$' {
			b.WriteByte(text[i])
			i++
			continue
		}
		rest := text[i+1:]
		if strings.HasPrefix(rest, "$") {
			b.WriteByte('$')
			i += 2
			continue
		}
		brace := strings.HasPrefix(rest, "{")
		if brace {
			rest = rest[1:]
		}
		n := nameLength(rest)
		size := 1 + n
		if brace {
			size += 2
		}
		value, known := values[rest[:n]]
		if n == 0 || !known || brace && !strings.HasPrefix(rest[n:], "}") {
			b.WriteByte('$')
			i++
			continue
		}
		b.WriteString(value)
		i += size
	}
	return b.String()
}

// nameLength returns the length of the identifier that text begins with.
func nameLength(text string) int {
	for i := range len(text) {
		c := text[i]
		letter := c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(text)
}
