// Evaluates a rendered MutatingAdmissionPolicy on pods with the API server's own code: selectors, match conditions,
// variables, patch, and a second pass over the result, as reinvocation would make. No cluster, no network.
//
//	evaluate_policy RENDERED.yaml NAMESPACE.yaml POD.yaml...
//
// RENDERED holds policies and bindings (v1 or v1beta1), as `helm template` prints them. For each pod one YAML document is
// printed: the pod after all policies, with what happened in comments before it. Exit status 1: an expression failed, or
// the second pass changed something. See tools/evaluate_policy/README.md for how to build it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	admv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// The runtime budget of one policy in the API server: RuntimeCELCostBudget of k8s.io/apiserver/pkg/apis/cel.
const costBudget = 10000000

var (
	kind     = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	resource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "evaluate_policy:", err)
		os.Exit(1)
	}
}

func read(path string, into any) {
	text, err := os.ReadFile(path)
	must(err)
	must(yaml.UnmarshalStrict(text, into))
}

func readPolicies(path string) (policies []admv1.MutatingAdmissionPolicy, bindings map[string][]admv1.MutatingAdmissionPolicyBinding) {
	bindings = map[string][]admv1.MutatingAdmissionPolicyBinding{}
	file, err := os.Open(path)
	must(err)
	defer file.Close()
	documents := utilyaml.NewDocumentDecoder(file)
	buffer := make([]byte, 1<<20)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return
		}
		must(err)
		var meta metav1.TypeMeta
		must(yaml.Unmarshal(buffer[:n], &meta))
		switch meta.Kind {
		case "MutatingAdmissionPolicy":
			var policy admv1.MutatingAdmissionPolicy
			must(yaml.UnmarshalStrict(buffer[:n], &policy))
			policies = append(policies, policy)
		case "MutatingAdmissionPolicyBinding":
			var binding admv1.MutatingAdmissionPolicyBinding
			must(yaml.UnmarshalStrict(buffer[:n], &binding))
			bindings[binding.Spec.PolicyName] = append(bindings[binding.Spec.PolicyName], binding)
		}
	}
}

func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	if selector == nil {
		return true
	}
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	must(err)
	return compiled.Matches(labels.Set(set))
}

// apply returns the pod after one policy, and a line that says what happened.
func apply(policy admv1.MutatingAdmissionPolicy, bindings []admv1.MutatingAdmissionPolicyBinding, pod *corev1.Pod, namespace *corev1.Namespace) (*corev1.Pod, string, error) {
	bound := false
	for _, binding := range bindings {
		match := binding.Spec.MatchResources
		bound = bound || match == nil || (selects(match.NamespaceSelector, namespace.Labels) && selects(match.ObjectSelector, pod.Labels))
	}
	if !bound {
		return pod, "namespace not selected", nil
	}
	constraints := policy.Spec.MatchConstraints
	if !selects(constraints.ObjectSelector, pod.Labels) || !selects(constraints.NamespaceSelector, namespace.Labels) {
		return pod, "pod not selected", nil
	}
	attributes := admission.NewAttributesRecord(pod, nil, kind, pod.Namespace, pod.Name, resource, "", admission.Create, &metav1.CreateOptions{}, false, nil)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind, VersionedObject: pod}
	options := plugincel.OptionalVariableDeclarations{HasParams: policy.Spec.ParamKind != nil, HasAuthorizer: true}
	environments := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	if older := os.Getenv("KUBERNETES_VERSION"); older != "" {
		// As an API server of that version would: only the CEL libraries that it has.
		environments = environment.MustBaseEnvSet(version.MustParseGeneric(older))
	}
	compiler, err := plugincel.NewCompositedCompiler(environments)
	if err != nil {
		return pod, "", err
	}
	ctx := context.Background()
	// Match conditions see no variables: the API server compiles them apart.
	var conditions []plugincel.ExpressionAccessor
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	plain := plugincel.NewConditionCompiler(environments)
	matcher := matchconditions.NewMatcher(plain.CompileCondition(conditions, options, environment.NewExpressions), policy.Spec.FailurePolicy, "policy", "mutate", policy.Name)
	result := matcher.Match(ctx, versioned, nil, nil)
	if result.Error != nil {
		return pod, "", fmt.Errorf("match conditions: %w", result.Error)
	}
	if !result.Matches {
		return pod, "not matched: " + result.FailedConditionName, nil
	}
	var variables []plugincel.NamedExpressionAccessor
	for _, variable := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: variable.Name, Expression: variable.Expression})
	}
	compiler.CompileAndStoreVariables(variables, options, environment.NewExpressions)
	ctx = compiler.CreateContext(ctx)
	options.HasPatchTypes = true
	for _, mutation := range policy.Spec.Mutations {
		patcher := patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}, options, environment.NewExpressions))
		patched, err := patcher.Patch(ctx, patch.Request{
			MatchedResource: resource, VersionedAttributes: versioned, Namespace: namespace,
			ObjectInterfaces: admission.NewObjectInterfacesFromScheme(scheme.Scheme),
			TypeConverter:    applyconfigurations.NewTypeConverter(scheme.Scheme),
		}, costBudget)
		if err != nil {
			return pod, "", err
		}
		versioned.VersionedObject = patched
	}
	after := versioned.VersionedObject.(runtime.Object).(*corev1.Pod)
	before, _ := json.Marshal(pod)
	now, _ := json.Marshal(after)
	if bytes.Equal(before, now) {
		return after, "matched, nothing to do", nil
	}
	return after, "patched", nil
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: evaluate_policy RENDERED.yaml NAMESPACE.yaml POD.yaml...")
		os.Exit(2)
	}
	policies, bindings := readPolicies(os.Args[1])
	var namespace corev1.Namespace
	read(os.Args[2], &namespace)
	failed := false
	for _, path := range os.Args[3:] {
		var pod corev1.Pod
		read(path, &pod)
		pod.Namespace = namespace.Name
		pod.SetGroupVersionKind(kind)
		fmt.Println("---")
		current := &pod
		for pass := 1; pass <= 2; pass++ {
			for _, policy := range policies {
				after, what, err := apply(policy, bindings[policy.Name], current, &namespace)
				if err != nil {
					what, failed = "FAILED: "+err.Error(), true
				}
				if pass == 2 && what == "patched" {
					what, failed = "FAILED: the second pass changed the pod again", true
				}
				if pass == 1 || what[:6] == "FAILED" {
					fmt.Printf("# %s: %s\n", policy.Name, what)
				}
				current = after
			}
		}
		text, err := yaml.Marshal(current)
		must(err)
		fmt.Print(string(text))
	}
	if failed {
		os.Exit(1)
	}
}
