// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// The rules of this file compare what the ranks were told about their world. They hold while a rank sets up the group of all: it
// waits for ranks that do not exist, or asks the wrong store.

// settings are what a rank takes for the size of its world and the address of the store.
type settings struct {
	rank    int    // as the program says, -1: not known
	world   int    // 0: not known
	program bool   // the program says so, not the environment
	store   string // "": not known
}

// settingsOf returns what a rank was started with, or what the program has made of it. A gateway to the store counts as the store.
func settingsOf(r Rank) settings {
	s := settingsIn(r)
	if s.store != "" && s.store == r.Gateway {
		s.store = r.Store
	}
	return s
}

// settingsIn looks into the calls that set up a group, which have the values as arguments.
func settingsIn(r Rank) settings {
	s := settings{rank: -1, world: r.World, store: r.Store}
	if r.Main == nil {
		return s
	}
	for i := range r.Main.Frames {
		f := &r.Main.Frames[i]
		if f.Func != "_create_c10d_store" && f.Func != "init_process_group" || !distributed(f.File) {
			continue
		}
		if n, err := strconv.Atoi(argument(f, "rank")); err == nil && n >= 0 {
			s.rank = n
		}
		if n, err := strconv.Atoi(argument(f, "world_size")); err == nil && n > 0 && n != s.world {
			s.world, s.program = n, r.World > 0
		}
		host, err := strconv.Unquote(argument(f, "hostname"))
		if port := argument(f, "port"); err == nil && port != "" {
			s.store = host + ":" + port
			return s
		}
		if f.Func != "init_process_group" {
			continue
		}
		given := argument(f, "init_method")
		method, _ := strconv.Unquote(given)
		if given == "" { // Python before 3.13 does not report; the line may
			method = methodText.FindString(r.Line)
		}
		if method != "" && method != "env://" {
			s.store = ""
			if u, err := url.Parse(method); err == nil && u.Scheme == "tcp" && u.Port() != "" {
				s.store = u.Host
			}
		}
	}
	return s
}

// methodText is an init_method in a line of a program. The program may put it together: then it is not an address.
var methodText = regexp.MustCompile(`(?:tcp|file)://[^"'?\s]*`)

// ProgramStore returns the address of the store that the program itself names where ranks set up the group of all, "" if they name none, or
// several.
func ProgramStore(ranks []Rank) string {
	addr := ""
	for _, r := range ranks {
		if s := settingsOf(r).store; s != "" && s != r.Store && locate(r).class == inInit {
			if addr != "" && addr != s {
				return ""
			}
			addr = s
		}
	}
	return addr
}

// Starting reports whether a rank sets up the group of all.
func Starting(ranks []Rank) bool {
	return slices.ContainsFunc(ranks, func(r Rank) bool { return locate(r).class == inInit })
}

// argument returns an argument of a call as Python writes it, "" if it is not known.
func argument(f *stacks.Frame, name string) string {
	for arg := range strings.FieldsSeq(f.Args) {
		if value, found := strings.CutPrefix(arg, name+"="); found {
			return value
		}
	}
	return ""
}

// worlds: the ranks have different values of WORLD_SIZE.
func (c *analysis) worlds() (Verdict, bool) {
	here := c.ranks(func(_ Rank, p position) bool { return p.class == inInit })
	// What the environment of a rank says is not its world if the program says another one: it may not have come to that.
	named := slices.ContainsFunc(here, func(rank int) bool { return settingsOf(*c.rank(rank)).program })
	sizes := map[string][]int{}
	all := map[int]settings{}
	for _, r := range c.job.Ranks {
		if s := settingsOf(r); r.Gone == "" && s.world > 0 && (!named || slices.Contains(here, r.Rank)) {
			all[r.Rank] = s
			sizes[strconv.Itoa(s.world)] = append(sizes[strconv.Itoa(s.world)], r.Rank)
		}
	}
	if len(here) == 0 || len(sizes) < 2 {
		return Verdict{}, false
	}
	odd, rule := minority(sizes)
	setting := "WORLD_SIZE"
	if named {
		setting = "world_size"
	}
	return Verdict{
		Culprits: blamed(odd, rule),
		Sentence: fmt.Sprintf("%s %s %s %d where %s %s %d: all ranks must have the same; %s in init_process_group (%s)%s.",
			name(odd), has(odd), setting, all[odd[0]].world, lower(name(rule)), has(rule), all[rule[0]].world, waits(here),
			c.lines(here), since(c.waited(here))),
	}, true
}

// numbers: the program gives two processes the same rank.
func (c *analysis) numbers() (Verdict, bool) {
	given := map[int][]int{}
	for _, n := range c.ranks(func(_ Rank, p position) bool { return p.class == inInit }) {
		if s := settingsOf(*c.rank(n)); s.rank >= 0 {
			given[s.rank] = append(given[s.rank], n)
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(given)) {
		if ranks := given[rank]; len(ranks) > 1 && ranks[0] != ranks[1] {
			return Verdict{
				Culprits: ranks,
				Sentence: fmt.Sprintf("%s call init_process_group with rank=%d (%s)%s: give each process its own rank.",
					name(ranks), rank, c.lines(ranks), since(c.waited(ranks))),
			}, true
		}
	}
	return Verdict{}, false
}

// stores: a rank uses another store than the others.
func (c *analysis) stores() (Verdict, bool) {
	here := c.ranks(func(_ Rank, p position) bool { return p.class == inInit })
	// What the environment of a rank says is not its store if the program names another one: it may not have come to that.
	named := slices.ContainsFunc(here, func(rank int) bool { r := c.rank(rank); return settingsOf(*r).store != r.Store })
	ports := map[string][]int{}
	all := map[int]string{}
	for _, r := range c.job.Ranks {
		store := settingsOf(r).store
		if named && !slices.Contains(here, r.Rank) {
			continue
		}
		if colon := strings.LastIndexByte(store, ':'); r.Gone == "" && colon >= 0 {
			all[r.Rank] = store
			ports[store[colon+1:]] = append(ports[store[colon+1:]], r.Rank) // one host may have several names
		}
	}
	if len(here) == 0 || len(ports) < 2 {
		return Verdict{}, false
	}
	odd, rule := minority(ports)
	return Verdict{
		Culprits: blamed(odd, rule),
		Sentence: fmt.Sprintf(
			"%s %s the store at %s where %s %s %s: all ranks must have the same MASTER_ADDR and MASTER_PORT; %s in "+
				"init_process_group (%s)%s.",
			name(odd), verb(odd, "use"), all[odd[0]], lower(name(rule)), verb(rule, "use"), all[rule[0]], waits(here),
			c.lines(here), since(c.waited(here))),
	}, true
}

// tooMany: the program wants a larger world than there are workers.
func (c *analysis) tooMany(here []int) (Verdict, bool) {
	s := settingsOf(*c.rank(here[0]))
	if !s.program || c.job.World == 0 || s.world <= c.job.World {
		return Verdict{}, false
	}
	return Verdict{Sentence: fmt.Sprintf(
		"The program wants more ranks than there are: WORLD_SIZE is %d, but it calls init_process_group with world_size=%d (%s); %s%s.",
		c.job.World, s.world, c.lines(here), waits(here), since(c.waited(here)))}, true
}

// strays: a rank that is missing runs, but was given another store.
func (c *analysis) strays() (Verdict, bool) {
	here := c.ranks(func(_ Rank, p position) bool { return p.class == inInit })
	if len(here) == 0 || len(c.job.Orphans) == 0 {
		return Verdict{}, false
	}
	other := c.job.Orphans[0]
	var ranks []int
	for _, s := range c.job.Orphans {
		if s.Store == other.Store {
			ranks = append(ranks, s.Rank)
		}
	}
	slices.Sort(ranks)
	text := fmt.Sprintf(" (process %d)", other.PID)
	if len(ranks) > 1 {
		text = ""
	}
	return Verdict{
		Culprits: ranks,
		Sentence: fmt.Sprintf(
			"%s %s the store at %s, and %s of the same program%s %s %s: all ranks must have the same MASTER_ADDR and MASTER_PORT; "+
				"%s in init_process_group (%s)%s.",
			name(here), verb(here, "use"), c.job.Store, lower(name(ranks)), text, verb(ranks, "use"), other.Store, waits(here),
			c.lines(here), since(c.waited(here))),
	}, true
}

// minority returns the ranks of the second largest group, and those of the largest. With a tie the lower ranks are taken for the
// rule.
func minority(kinds map[string][]int) (odd, rule []int) {
	var groups [][]int
	for _, ranks := range kinds {
		slices.Sort(ranks)
		groups = append(groups, ranks)
	}
	slices.SortFunc(groups, func(a, b []int) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return a[0] - b[0]
	})
	return groups[1], groups[0]
}

// blamed returns the minority, or all where there is none.
func blamed(odd, rule []int) []int {
	if len(odd) < len(rule) {
		return odd
	}
	return slices.Sorted(slices.Values(slices.Concat(odd, rule)))
}
