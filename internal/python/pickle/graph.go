// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import "github.com/cohort-dist/cohort"

const (
	unseen uint8 = iota
	open         // its children are being visited
	done
)

// visit is one step of the walk: a container and the child that is next.
type visit struct {
	node *node
	next func(i int) (any, bool)
	i    int
}

// checkGraph measures the nesting of what a pickle made. A pickle can nest values without its stack growing (by
// appending to a list that is already inside another), so this is done on the result, without recursion, and each
// container is visited once however often it is mentioned.
func checkGraph(root any, limits Limits) error {
	n, next := children(root)
	if n == nil {
		return nil
	}
	var stack0 [16]visit
	stack := append(stack0[:0], visit{node: n, next: next})
	n.state = open
	for len(stack) > 0 {
		if len(stack) > limits.Depth {
			return tooDeep(limits)
		}
		v := &stack[len(stack)-1]
		child, more := v.next(v.i)
		v.i++
		if !more {
			v.node.state = done
			depth := v.node.depth + 1
			stack = stack[:len(stack)-1]
			if len(stack) > 0 {
				parent := stack[len(stack)-1].node
				parent.depth = max(parent.depth, depth)
			}
			if int(depth) > limits.Depth {
				return tooDeep(limits)
			}
			continue
		}
		cn, cnext := children(child)
		switch {
		case cn == nil:
		case cn.state == open:
			cn.shared = true
			if !limits.Cycles {
				return cohort.New("pickle: decode", cohort.NotSupported, "a value that contains itself")
			}
		case cn.state == done:
			cn.shared = true
			v.node.depth = max(v.node.depth, cn.depth+1)
		default:
			cn.state = open
			stack = append(stack, visit{node: cn, next: cnext})
		}
	}
	return nil
}

func tooDeep(limits Limits) error {
	return cohort.Newf("pickle: decode", cohort.TooLarge, "values nested deeper than %d", limits.Depth)
}

func itemAt(items []any) func(int) (any, bool) {
	return func(i int) (any, bool) {
		if i < len(items) {
			return items[i], true
		}
		return nil, false
	}
}

func pairAt(pairs []Pair, i int) (any, bool) {
	if i >= 2*len(pairs) {
		return nil, false
	}
	if i%2 == 0 {
		return pairs[i/2].Key, true
	}
	return pairs[i/2].Value, true
}

// children returns the walk of a container, or nil for a plain value.
func children(v any) (*node, func(int) (any, bool)) {
	switch v := v.(type) {
	case *List:
		return &v.node, itemAt(v.Items)
	case *Tuple:
		return &v.node, itemAt(v.Items)
	case *Set:
		return &v.node, itemAt(v.Items)
	case *FrozenSet:
		return &v.node, itemAt(v.Items)
	case *Dict:
		return &v.node, func(i int) (any, bool) { return pairAt(v.Pairs, i) }
	case *PersID:
		return &v.node, itemAt([]any{v.ID})
	case *Object:
		return &v.node, v.child
	}
	return nil, nil
}

func (o *Object) child(i int) (any, bool) {
	switch i {
	case 0:
		return o.Class, true
	case 1:
		return o.Args, true
	case 2:
		if o.KwArgs == nil {
			return nil, true
		}
		return o.KwArgs, true
	}
	i -= 3
	if i < len(o.States) {
		return o.States[i], true
	}
	i -= len(o.States)
	if i < len(o.Items) {
		return o.Items[i], true
	}
	return pairAt(o.Pairs, i-len(o.Items))
}

// Shared reports whether a decoded container is mentioned more than once, so that a converter needs to remember it.
func Shared(v any) bool {
	n, _ := children(v)
	return n != nil && n.shared
}

// Walk calls visit for each container inside a decoded value, once however often it is mentioned.
func Walk(root any, visit func(v any)) {
	seen := map[*node]bool{}
	for left := []any{root}; len(left) > 0; {
		v := left[len(left)-1]
		left = left[:len(left)-1]
		n, next := children(v)
		if n == nil || seen[n] {
			continue
		}
		if n.shared {
			seen[n] = true
		}
		visit(v)
		for i := 0; ; i++ {
			child, more := next(i)
			if !more {
				break
			}
			left = append(left, child)
		}
	}
}
