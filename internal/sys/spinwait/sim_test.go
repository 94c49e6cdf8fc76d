// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A machine in virtual time: cores with run queues, time slices, yields and wake-ups that cost what they cost a real one, and
// threads that are ranks or compute. Ranks stay on their core, the worst that a kernel can do.

const (
	simWork   = 500 * time.Nanosecond // of a rank between two waits
	simLook   = time.Microsecond      // of a spin
	simCall   = 300 * time.Nanosecond // of a yield without takers
	simSwitch = 800 * time.Nanosecond // from one thread to another
	simWake   = 1500 * time.Nanosecond
	simRouse  = 5 * time.Microsecond // until a sleeper runs, if the machine is not slow in that
	simSlice  = 3 * time.Millisecond
	simPeriod = 100 * time.Millisecond
	simCopy   = 2 * time.Millisecond // of a rank in an operation of much data
)

type simThread struct {
	core    *simCore
	rank    int  // -1 computes
	step    int  // taken
	waiting bool // for the others to take it
	asleep  bool
	slept   int           // times
	yielded bool          // has to be given the time that took
	ready   time.Duration // not before
	until   time.Duration // a computing thread ends then
	began   time.Duration
	took    []time.Duration // of each operation
	used    time.Duration   // of its core
	w       Waiter
}

type simCore struct {
	now   time.Duration
	queue []*simThread // the first one that is ready runs
	runs  *simThread
	since time.Duration // it runs
}

type sim struct {
	cores []*simCore
	ranks []*simThread
	noise func() time.Duration // what a step takes longer than usual
	large int                  // the first steps are of much data
	rouse time.Duration        // until a sleeper runs

	limit time.Duration // of all cores together in each simPeriod, as a container has it; 0 is none
	used  time.Duration // of it
	ends  time.Duration // the period
}

func newSim(ranks, cores int, place func(rank int) int) *sim {
	s := &sim{noise: func() time.Duration { return 0 }, rouse: simRouse}
	for range cores {
		s.cores = append(s.cores, &simCore{})
	}
	for r := range ranks {
		t := &simThread{core: s.cores[place(r)], rank: r}
		t.core.queue = append(t.core.queue, t)
		s.ranks = append(s.ranks, t)
	}
	for _, t := range s.ranks {
		t.w.SetSharing(len(t.core.queue) - 1)
	}
	return s
}

// hog puts a computing thread on a core.
func (s *sim) hog(core int, from, until time.Duration) {
	c := s.cores[core]
	c.queue = append(c.queue, &simThread{core: c, rank: -1, ready: from, until: until})
}

func (c *simCore) others(t *simThread) bool {
	return slices.ContainsFunc(c.queue, func(o *simThread) bool { return o != t && o.ready <= c.now })
}

func (c *simCore) drop(t *simThread) {
	c.queue = slices.DeleteFunc(c.queue, func(o *simThread) bool { return o == t })
}

// rotate gives the core to the next thread that is ready.
func (c *simCore) rotate(t *simThread) {
	c.drop(t)
	c.queue = append(c.queue, t)
	c.now += simSwitch
}

// run continues until every rank has done so many operations.
func (s *sim) run(tb testing.TB, operations int) {
	tb.Helper()
	for turns := 0; ; turns++ {
		if turns > 50_000_000 {
			tb.Fatal("no progress")
		}
		busy := slices.DeleteFunc(slices.Clone(s.cores), func(c *simCore) bool { return len(c.queue) == 0 })
		if len(busy) == 0 {
			tb.Fatal("all ranks sleep")
		}
		c := slices.MinFunc(busy, func(a, b *simCore) int { return cmp.Compare(a.now, b.now) })
		if !slices.ContainsFunc(c.queue, func(t *simThread) bool { return t.ready <= c.now }) {
			c.now = slices.MinFunc(c.queue, func(a, b *simThread) int { return cmp.Compare(a.ready, b.ready) }).ready
		}
		t := c.queue[slices.IndexFunc(c.queue, func(t *simThread) bool { return t.ready <= c.now })]
		if t != c.runs {
			c.runs, c.since = t, c.now
		}
		before := c.now
		s.turn(c, t)
		s.charge(c.now - before)
		if c.now-c.since > simSlice && slices.Contains(c.queue, t) && c.others(t) {
			c.rotate(t)
		}
		if !slices.ContainsFunc(s.ranks, func(t *simThread) bool { return len(t.took) < operations }) {
			return
		}
	}
}

// charge counts time against the limit; once it is used up, no thread runs until the period is over.
func (s *sim) charge(d time.Duration) {
	if s.limit == 0 {
		return
	}
	first := slices.MinFunc(s.cores, func(a, b *simCore) int { return cmp.Compare(a.now, b.now) }).now
	for ; s.ends <= first; s.ends += simPeriod {
		s.used = 0
	}
	if s.used += d; s.used >= s.limit {
		for _, c := range s.cores {
			c.now = max(c.now, s.ends)
		}
	}
}

// turn lets a thread do one thing.
func (s *sim) turn(c *simCore, t *simThread) {
	before := c.now
	defer func() { t.used += max(min(c.now-before, simSlice), 0) }()
	switch {
	case t.rank < 0:
		if c.now >= t.until {
			c.drop(t)
			return
		}
		// Until its slice is over, or earlier where no other thread is there; a thread that wakes up takes the core from it.
		c.now += 5 * time.Microsecond
	case !t.waiting:
		c.now += simWork + s.noise()
		bytes := 0
		if t.step < s.large {
			c.now += simCopy
			bytes = Much + 1
		}
		t.step++
		t.waiting = true
		s.wake(c, t)
		t.w.SetSize(bytes)
		t.w.Begin(c.now)
	default:
		s.wait(c, t)
	}
}

func (s *sim) complete(t *simThread) bool {
	return !slices.ContainsFunc(s.ranks, func(o *simThread) bool { return o.step < t.step })
}

// wait does what the machine under test returns.
func (s *sim) wait(c *simCore, t *simThread) {
	if t.yielded {
		t.yielded = false
		t.w.Yielded(c.now)
	}
	if s.complete(t) {
		t.waiting = false
		t.took = append(t.took, c.now-t.began)
		t.began = c.now
		return
	}
	switch t.w.Next(c.now) {
	case Spin:
		c.now += simLook
	case Yield:
		c.now += simCall
		t.yielded = true
		if c.others(t) {
			c.rotate(t)
		}
	case Sleep:
		t.asleep = true
		t.slept++
		c.drop(t)
		c.now += simSwitch
	}
}

// wake wakes the sleepers whose last rank has arrived.
func (s *sim) wake(c *simCore, t *simThread) {
	for _, o := range s.ranks {
		if o != t && o.asleep && s.complete(o) {
			c.now += simWake
			o.asleep, o.ready = false, c.now+s.rouse
			if len(o.core.queue) == 0 {
				o.core.now = max(o.core.now, c.now)
			}
			at := 0
			for at < len(o.core.queue) && o.core.queue[at].rank >= 0 { // before those who compute
				at++
			}
			o.core.queue = slices.Insert(o.core.queue, at, o)
			o.w.Begin(o.ready)
		}
	}
}

// median is the p50 of an operation, mean its mean, of the slowest rank.
func (s *sim) median() (median, mean time.Duration) {
	for _, t := range s.ranks {
		sum := time.Duration(0)
		for _, d := range t.took {
			sum += d
		}
		mean = max(mean, sum/time.Duration(len(t.took)))
		slices.Sort(t.took)
		median = max(median, t.took[len(t.took)/2])
	}
	return median, mean
}

// No combination of ranks, cores, placement, other threads and delays has a cliff: with the same number of threads that want a
// core the median is within a factor of the best.
func TestNoCliff(t *testing.T) {
	t.Parallel()
	type setting struct {
		ranks, cores int
		crowd        bool // all ranks on one core, the others idle
	}
	for _, c := range []setting{
		{2, 2, false},
		{2, 1, false},
		{2, 2, true},
		{4, 4, false},
		{4, 2, false},
		{8, 2, false},
		{12, 16, false},
		{14, 16, false},
		{16, 16, false},
		{24, 16, false},
		{32, 2, false},
	} {
		place := func(r int) int { return r % c.cores }
		perCore := (c.ranks + c.cores - 1) / c.cores
		if c.crowd {
			place, perCore = func(int) int { return 0 }, c.ranks
		}
		// A cycle of all that share a core, and what a delay of one costs the others.
		best := time.Duration(perCore) * (simWork + simCall + 2*simSwitch)
		for _, extra := range []string{"alone", "delays", "other threads", "collector"} {
			t.Run(fmt.Sprintf("%d ranks on %d cores, crowd %v, %s", c.ranks, c.cores, c.crowd, extra), func(t *testing.T) {
				t.Parallel()
				s := newSim(c.ranks, c.cores, place)
				random := rand.New(rand.NewPCG(1, uint64(c.ranks)))
				switch extra {
				case "delays": // an interrupt, a kernel thread, a timer of the runtime
					s.noise = func() time.Duration {
						if random.IntN(300) == 0 {
							return 60 * time.Microsecond
						}
						return 0
					}
				case "other threads":
					for core := range s.cores {
						s.hog(core, 0, time.Hour)
					}
				case "collector":
					for at := 2 * time.Millisecond; at < 200*time.Millisecond; at += 5 * time.Millisecond {
						s.hog(0, at, at+time.Millisecond)
					}
				}
				s.run(t, 1000)
				median, mean := s.median()
				t.Logf("p50 %v mean %v", median, mean)
				limit := 3 * max(best, 2*time.Microsecond)
				if extra == "other threads" { // a rank that gives a core to them has to be woken, one after the other
					limit += 3*time.Duration(perCore)*simRouse + time.Duration(c.ranks-1)*simWake
				}
				unknown := time.Duration(perCore-1)*partTime >= maxCounted
				if extra == "other threads" && unknown { // they cannot be distinguished from so many ranks
					limit += 2 * simSlice
				}
				if median > limit {
					t.Errorf("p50 is %v, at most %v", median, limit)
				}
				if extra == "alone" && (median > best || mean > best) {
					t.Errorf("p50 %v, mean %v: ranks that take turns need at most %v", median, mean, best)
				}
				if extra == "other threads" && !unknown && mean > time.Millisecond {
					t.Errorf("the mean is %v: whole time slices are given away", mean)
				}
			})
		}
	}
}

// A limit on the processor time of a container stops all ranks now and then, for long. They do not mistake that for a thread that
// computes.
func TestLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ranks, cores int }{{4, 2}, {8, 2}, {8, 4}} {
		t.Run(fmt.Sprintf("%d ranks on %d cores", c.ranks, c.cores), func(t *testing.T) {
			t.Parallel()
			s := newSim(c.ranks, c.cores, func(r int) int { return r % c.cores })
			s.limit = simPeriod // one core
			s.run(t, 240_000/c.ranks)
			_, mean := s.median()
			// On one core they would take turns.
			if turns := time.Duration(c.ranks) * (simWork + simCall + 2*simSwitch); mean > turns {
				t.Errorf("an operation takes %v on average; %v on one core without a limit", mean, turns)
			}
		})
	}
}

// Ranks that have waited for each other while they copied a lot do not mistake each other for computing threads in the small
// operations behind that.
func TestSmallAfterLarge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ranks, cores int }{{4, 2}, {8, 2}, {24, 16}} {
		t.Run(fmt.Sprintf("%d ranks on %d cores", c.ranks, c.cores), func(t *testing.T) {
			t.Parallel()
			s := newSim(c.ranks, c.cores, func(r int) int { return r % c.cores })
			s.large = 20
			const after, small = 50, 1000 // operations until all have left the last large one
			s.run(t, s.large+after+small)
			turns := time.Duration((c.ranks+c.cores-1)/c.cores) * (simWork + simCall + 2*simSwitch)
			for _, r := range s.ranks {
				took := slices.Sorted(slices.Values(r.took[s.large+after:]))
				if median := took[len(took)/2]; median > turns {
					t.Errorf("rank %d: p50 is %v; ranks that take turns need at most %v", r.rank, median, turns)
				}
			}
		})
	}
}

// Many ranks on a core that take long for their turns, as over TCP, do not mistake each other for computing threads.
func TestManyRanksOnACore(t *testing.T) {
	t.Parallel()
	const work = 200 * time.Microsecond
	for _, ranks := range []int{16, 32, 64} {
		t.Run(fmt.Sprintf("%d ranks on 2 cores", ranks), func(t *testing.T) {
			t.Parallel()
			s := newSim(ranks, 2, func(r int) int { return r % 2 })
			s.noise = func() time.Duration { return work }
			s.run(t, 200)
			for _, r := range s.ranks {
				if r.slept > 0 {
					t.Fatalf("rank %d slept %d times in 200 operations", r.rank, r.slept)
				}
			}
		})
	}
}

// Where a sleeper runs again only long after it was woken, longer than the others spin at first, ranks that have lost each other once find
// together again, and do not sleep in each operation from then on.
func TestSlowToWake(t *testing.T) {
	t.Parallel()
	for _, ranks := range []int{2, 3, 8} {
		for _, rouse := range []time.Duration{maxSpin / 2, maxSpin + 50*time.Microsecond, 2 * maxSpin, 3 * maxSpin} {
			t.Run(fmt.Sprintf("%d ranks, %v", ranks, rouse), func(t *testing.T) {
				t.Parallel()
				s := newSim(ranks, ranks, func(r int) int { return r })
				s.rouse = rouse
				steps := 0
				s.noise = func() time.Duration {
					if steps++; steps == 10*ranks { // one rank, once
						return 2 * time.Millisecond
					}
					return 0
				}
				s.run(t, 1000)
				for _, r := range s.ranks {
					if r.slept > 20 {
						t.Errorf("rank %d slept %d times in 1000 operations", r.rank, r.slept)
					}
				}
			})
		}
	}
}

// Ranks with a core each, beside threads that compute there, get their share of the cores at the same time.
func TestInStep(t *testing.T) {
	t.Parallel()
	for _, ranks := range []int{2, 4, 16} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			t.Parallel()
			s := newSim(ranks, ranks, func(r int) int { return r })
			for core := range s.cores {
				s.hog(core, time.Duration(core)*simSlice/7, time.Hour) // their turns begin at different times
			}
			s.run(t, 15_000)
			const alone = simWork + simLook
			if _, mean := s.median(); mean > 3*alone {
				t.Errorf("an operation takes %v on average, at most %v without the others", mean, alone)
			}
		})
	}
}

// A rank that waits for one that computes uses no more of its core than maxSpin, then none.
func TestLongWait(t *testing.T) {
	t.Parallel()
	s := newSim(2, 2, func(r int) int { return r })
	late := s.ranks[1]
	late.ready = 50 * time.Millisecond
	s.run(t, 1)
	if used := s.ranks[0].used; used > maxSpin+10*time.Microsecond {
		t.Errorf("a rank that waited for 50 ms used %v of its core", used)
	}
}

// A rank that waits for one on its own core for long leaves it the core.
func TestSharedWithWork(t *testing.T) {
	t.Parallel()
	s := newSim(2, 1, func(int) int { return 0 })
	first := true
	s.noise = func() time.Duration {
		if first {
			first = false
			return 0
		}
		return 2 * time.Millisecond
	}
	s.run(t, 20)
	if _, mean := s.median(); mean > 5*time.Millisecond {
		t.Errorf("two ranks that compute 2 ms each on one core take %v per operation", mean)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cores   []int
		allowed []int
		moves   map[int]int
	}{
		{[]int{0, 0}, []int{0, 1}, map[int]int{1: 1}},
		{[]int{0, 1}, []int{0, 1}, nil},
		{[]int{0, 0}, []int{0}, nil},
		{[]int{0, noCore}, []int{0, 1}, nil},
		{[]int{0, 0, 0, 1}, []int{0, 1}, map[int]int{2: 1}},
		{[]int{0, 0, 0}, []int{0, 1}, map[int]int{2: 1}},
		{[]int{0, 0, 1}, []int{0, 1}, nil}, // it would only change sides
		{[]int{3, 3, 3, 3}, []int{0, 1, 2, 3}, map[int]int{3: 0}},
		{[]int{0, 0, 5, 5}, []int{0, 1, 5, 7}, map[int]int{1: 1, 3: 7}},
		{[]int{0, 0, 1, 1, 2, 2}, []int{0, 1, 2, 3}, map[int]int{1: 3}}, // one place for three
	} {
		for me := range c.cores {
			to, ok := spread(me, c.cores, c.allowed)
			want, move := c.moves[me]
			if ok != move || ok && to != want {
				t.Errorf("cores %v, allowed %v: rank %d goes to %d %v, want %d %v", c.cores, c.allowed, me, to, ok, want, move)
			}
		}
	}
}

// Ranks that all decide by the same list, at the same time, settle too. No core gets so many of them that it is as crowded as
// the most crowded one that they left, and no rank leaves a core that it has to itself.
func TestSpreadAtOnce(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		ranks, n := 1+random.IntN(40), 1+random.IntN(20)
		cores, allowed := make([]int, ranks), random.Perm(n)
		for r := range cores {
			cores[r] = random.IntN(1 + random.IntN(n)) // many on the first ones
		}
		for round, rest := 0, false; !rest; round++ {
			if round > ranks {
				t.Fatalf("%d ranks on %d cores do not settle: %v", ranks, n, cores)
			}
			next := slices.Clone(cores)
			rest = true
			for me := range cores {
				if to, ok := spread(me, cores, allowed); ok {
					next[me], rest = to, false
				}
			}
			crowds := make([]int, n) // the largest that each core gets a rank of
			for me, to := range next {
				if from := ranksOn(cores, cores[me]); to != cores[me] {
					crowds[to] = max(crowds[to], from)
					if from < 2 {
						t.Fatalf("rank %d leaves a core that it has to itself: %v, then %v", me, cores, next)
					}
				}
			}
			for c, crowd := range crowds {
				if crowd > 0 && ranksOn(next, c) >= crowd {
					t.Fatalf("ranks that go to core %d make a new crowd: %v, then %v", c, cores, next)
				}
			}
			cores = next
		}
		perCore := make([]int, n)
		for _, c := range cores {
			perCore[c]++
		}
		if slices.Max(perCore)-slices.Min(perCore) > 1 {
			t.Fatalf("ranks per core: %v", perCore)
		}
	}
}

// Ranks that follow Spread one after the other settle, with no core two ranks ahead of another.
func TestSpreadSettles(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		ranks, n := 1+random.IntN(40), 1+random.IntN(20)
		cores, allowed := make([]int, ranks), make([]int, n)
		for i := range allowed {
			allowed[i] = i
		}
		for r := range cores {
			cores[r] = random.IntN(n)
		}
		moves := 0
		for moved := true; moved; {
			moved = false
			for me := range cores {
				if to, ok := spread(me, cores, allowed); ok {
					cores[me], moved = to, true
					moves++
				}
			}
		}
		if moves > ranks*n {
			t.Fatalf("%d ranks on %d cores moved %d times", ranks, n, moves)
		}
		count := make([]int, n)
		for _, c := range cores {
			count[c]++
		}
		if slices.Max(count)-slices.Min(count) > 1 {
			t.Fatalf("ranks per core: %v", count)
		}
	}
}
