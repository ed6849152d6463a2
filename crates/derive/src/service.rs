//! The expansion of `portcullis_rpc::service`: a client with a method for each method of the trait, and a server that
//! puts an implementation on a channel. The traits of `portcullis_rpc` decide which forms of arguments and of results
//! exist; this module distinguishes arguments only by their position and shape.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Generics, Ident, ItemTrait, Lifetime, LitInt, PathArguments,
    ReturnType, TraitItem, TraitItemFn, Type,
};

/// A trait that declares methods, as the macro parses it.
struct Service {
    /// The trait without the attributes that only the macro reads.
    item: ItemTrait,
    methods: Vec<Method>,
}

/// A method of the trait.
struct Method {
    /// The attributes of the method that hold for the client's method too.
    attributes: Vec<Attribute>,
    number: u32,
    name: Ident,
    /// The form of the method's arguments, with `'static` for the lifetime that they have in a call.
    form: Option<Type>,
    has_word: bool,
    has_reply: bool,
    output: Type,
}

/// Expands the attribute.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    if !attribute.is_empty() {
        return Err(Error::new_spanned(
            attribute,
            "`service` takes no arguments: write the numbers at the methods",
        ));
    }
    let service = Service::read(syn::parse2(item)?)?;
    let Service { item, .. } = &service;
    let (client, server) = (service.client(), service.server());
    Ok(quote! { #item #client #server })
}

impl Service {
    fn read(mut item: ItemTrait) -> Result<Self, Error> {
        let mut errors = Errors::default();
        errors.refuse(item.unsafety.is_some(), item.ident.span(), "a service's trait is not unsafe");
        errors.refuse(
            has_parameters(&item.generics),
            item.generics.span(),
            "a service has no parameters: its clients and its server would have to agree on them",
        );
        let mut methods = Vec::new();
        for part in &mut item.items {
            match part {
                TraitItem::Fn(method) => methods.extend(errors.keep(Method::read(method))),
                other => errors.add(Error::new(other.span(), "a service has methods and nothing else")),
            }
        }
        let mut named = BTreeMap::<u32, &Ident>::new();
        for Method { number, name, .. } in &methods {
            if let Some(before) = named.insert(*number, name) {
                errors.add(Error::new(name.span(), format!("`{before}` has the number {number} already")));
            }
        }
        errors.refuse(item.items.is_empty(), item.ident.span(), "a service has at least one method");
        errors.end()?;
        Ok(Self { item, methods })
    }

    /// The generated type that calls the methods.
    fn client(&self) -> TokenStream {
        let (visibility, service) = (&self.item.vis, &self.item.ident);
        let name = format_ident!("{service}Client");
        let methods = self.methods.iter().map(|method| method.client());
        let doc = format!(
            "Calls the methods of [`{service}`] over a connection: its own, or `&mut` one that others use too."
        );
        quote! {
            #[doc = #doc]
            #[derive(Debug)]
            #[allow(dead_code, reason = "a program may have one side only")]
            #visibility struct #name<C = ::portcullis_rpc::channel::Connection>(
                /// The connection.
                pub C,
            );
            #[allow(dead_code, reason = "a program may have one side only")]
            impl<C> #name<C>
            where
                C: ::core::borrow::BorrowMut<::portcullis_rpc::channel::Connection>,
            {
                #(#methods)*
            }
        }
    }

    /// The generated type that puts an implementation on a channel.
    fn server(&self) -> TokenStream {
        let (visibility, service) = (&self.item.vis, &self.item.ident);
        let name = format_ident!("{service}Server");
        let methods = self.methods.iter().map(|method| method.server(service));
        let doc = format!("Puts an implementation of [`{service}`] on a channel, with `Channel::service`.");
        quote! {
            #[doc = #doc]
            #[derive(Debug)]
            #[allow(dead_code, reason = "a program may have one side only")]
            #visibility struct #name<S>(
                /// The implementation.
                pub S,
            );
            impl<S> ::portcullis_rpc::channel::Service for #name<S>
            where
                S: #service + ::core::marker::Send + ::core::marker::Sync,
                S: ::std::panic::RefUnwindSafe + 'static,
            {
                fn add_to(
                    self,
                    channel: ::portcullis_rpc::channel::Channel,
                ) -> ::portcullis_rpc::channel::Channel {
                    let shared = ::std::sync::Arc::new(self.0);
                    #(#methods)*
                    channel
                }
            }
        }
    }
}

impl Method {
    /// Reads a method, and removes the attribute with its number.
    fn read(method: &mut TraitItemFn) -> Result<Self, Error> {
        let name = method.sig.ident.clone();
        let number = take_number(method)?;
        check_signature(method)?;
        let (mut form, mut has_word, mut has_reply) = (None, false, false);
        for argument in method.sig.inputs.iter().skip(1) {
            let FnArg::Typed(argument) = argument else { continue };
            let is_in_order = match &*argument.ty {
                Type::Reference(it) if it.mutability.is_some() => !std::mem::replace(&mut has_reply, true),
                Type::Path(it) if it.path.is_ident("u64") => {
                    !std::mem::replace(&mut has_word, true) && !has_reply
                }
                other => {
                    let is_first = form.is_none() && !has_word && !has_reply;
                    form = Some(form_of(other)?);
                    is_first
                }
            };
            if !is_in_order {
                return Err(Error::new(argument.span(), ORDER));
            }
        }
        let ReturnType::Type(_, output) = &method.sig.output else {
            return Err(Error::new(name.span(), "a method returns a `Result`: write its types"));
        };
        let holds =
            |it: &&Attribute| ["doc", "cfg", "deprecated"].iter().any(|name| it.path().is_ident(name));
        let attributes = method.attrs.iter().filter(holds).cloned().collect();
        Ok(Self { attributes, number, name, form, has_word, has_reply, output: (**output).clone() })
    }

    /// The client's methods: one that waits for the answer, and one that does not.
    fn client(&self) -> TokenStream {
        let Self { attributes, number, name, form, has_word, output, .. } = self;
        let begin = format_ident!("begin_{name}", span = name.span());
        let root = form.as_ref().map(|form| {
            quote_spanned! { form.span() =>
                scope: &<#form as ::portcullis_rpc::channel::Isolation>::Passed,
                root: ::portcullis_rpc::Boxed<<#form as ::portcullis_rpc::channel::Isolation>::Root>,
            }
        });
        let (scope_value, root_value) = match form {
            Some(_) => (quote! { ::portcullis_rpc::channel::Passed::reference(scope) }, quote! { root }),
            None => (
                quote! { ::core::default::Default::default() },
                quote! { ::portcullis_rpc::Boxed::<u64>::NULL },
            ),
        };
        let arguments = form.as_ref().map(|_| quote! { scope, root, });
        let (word, word_value) =
            if *has_word { (Some(quote! { word: u64, }), quote! { word }) } else { (None, quote! { 0 }) };
        let passed = has_word.then(|| quote! { word, });
        let outcome = quote_spanned! { output.span() =>
            <#output as ::portcullis_rpc::channel::Returned>::MethodResult
        };
        let doc = format!(
            "Begins [`{name}`](Self::{name}) without waiting. The scope must not be freed before the call has ended. `within`: how long its answer is waited for."
        );
        let conditions = attributes.iter().filter(|it| !it.path().is_ident("doc"));
        let conditions: Vec<_> = conditions.collect();
        quote! {
            #(#attributes)*
            pub fn #name(&mut self, #root #word) -> ::core::result::Result<
                <#outcome as ::portcullis_rpc::channel::MethodResult>::Answer,
                ::portcullis_rpc::channel::CallError,
            > {
                self.#begin(#arguments #passed ::core::option::Option::None)?.wait(self.0.borrow_mut())
            }

            #(#conditions)*
            #[doc = #doc]
            pub fn #begin(
                &mut self,
                #root
                #word
                within: ::core::option::Option<::core::time::Duration>,
            ) -> ::core::result::Result<
                ::portcullis_rpc::channel::TypedCall<#outcome>,
                ::portcullis_rpc::channel::CallError,
            > {
                let connection: &mut ::portcullis_rpc::channel::Connection = self.0.borrow_mut();
                connection
                    .begin(#number, #scope_value, #root_value, #word_value, within)
                    .map(::portcullis_rpc::channel::TypedCall::new)
            }
        }
    }

    /// The code that puts the method on a channel.
    fn server(&self, service: &Ident) -> TokenStream {
        let Self { attributes, number, name, form, has_word, has_reply, .. } = self;
        let without: Type = syn::parse_quote!(::portcullis_rpc::channel::Copied<'static, u64>);
        let used = form.as_ref().unwrap_or(&without);
        let given = form.as_ref().map(|_| quote! { given, });
        let word = has_word.then(|| quote! { word, });
        let reply = has_reply.then(|| quote! { reply });
        let conditions = attributes.iter().filter(|it| it.path().is_ident("cfg"));
        let form = quote_spanned! { used.span() => <#used as ::portcullis_rpc::channel::Isolation> };
        let read_word = has_word.then(|| quote! { let word = #form::word(&given); });
        quote! {
            #(#conditions)*
            let channel = {
                let shared = ::std::sync::Arc::clone(&shared);
                #form::add(channel, #number, move |given, reply| {
                    #read_word
                    let returned = <S as #service>::#name(&shared, #given #word #reply);
                    ::portcullis_rpc::channel::Returned::tell(returned, reply)
                })
            };
        }
    }
}

/// The error text for an argument that the macro does not accept.
const ORDER: &str = "a method takes `&self`, then its arguments as `Copied<'_, T>` or in another form, then a word as `u64`, then \
                     `&mut Reply<'_>`: each at most once, and none of them is needed";

/// Removes the attribute with the number from a method, and returns the number.
fn take_number(method: &mut TraitItemFn) -> Result<u32, Error> {
    let is_number = |attribute: &Attribute| attribute.path().is_ident("method");
    let numbers: Vec<Attribute> = method.attrs.extract_if(.., |it| is_number(it)).collect();
    let name = &method.sig.ident;
    match numbers.as_slice() {
        [number] => number.parse_args::<LitInt>().and_then(|it| it.base10_parse()).map_err(|_| {
            Error::new_spanned(number, "a number is one of 32 bits without a sign: write `#[method(100)]`")
        }),
        [] => Err(Error::new(
            name.span(),
            format!(
                "`{name}` has no number: write `#[method(100)]`. It stays what it is in all later versions"
            ),
        )),
        [_, again, ..] => Err(Error::new_spanned(again, format!("`{name}` has a number already"))),
    }
}

/// Refuses signatures that cannot be called from another process.
fn check_signature(method: &TraitItemFn) -> Result<(), Error> {
    let signature = &method.sig;
    let mut errors = Errors::default();
    let name = signature.ident.span();
    errors.refuse(
        signature.asyncness.is_some(),
        name,
        "a method is not async: a client begins a call and waits for it later",
    );
    errors.refuse(signature.unsafety.is_some(), name, "a method is not unsafe: any client may call it");
    errors.refuse(
        has_parameters(&signature.generics),
        signature.generics.span(),
        "a method has no parameters: its clients and its server would have to agree on them",
    );
    let is_shared = signature.receiver().is_some_and(|it| {
        it.reference.as_ref().is_some_and(|(_, lifetime)| lifetime.is_none())
            && it.mutability.is_none()
            && it.colon_token.is_none()
    });
    errors.refuse(
        !is_shared,
        signature.inputs.first().map_or(name, Spanned::span),
        "a method takes `&self` first: several threads call it",
    );
    errors.end()
}

/// The form of arguments in a signature, with `'static` for its lifetime: a form with the lifetime of a call cannot be
/// named outside that call.
fn form_of(written: &Type) -> Result<Type, Error> {
    let mut form = written.clone();
    let Type::Path(path) = &mut form else { return Err(Error::new(written.span(), ORDER)) };
    let Some(PathArguments::AngleBracketed(arguments)) =
        path.path.segments.last_mut().map(|segment| &mut segment.arguments)
    else {
        return Err(Error::new(written.span(), ORDER));
    };
    match arguments.args.first_mut() {
        Some(GenericArgument::Lifetime(lifetime)) => *lifetime = Lifetime::new("'static", lifetime.span()),
        _ => {
            let text =
                "arguments are borrowed for the call: write `'_` before their type, as in `Copied<'_, T>`";
            return Err(Error::new(written.span(), text));
        }
    }
    Ok(form)
}

fn has_parameters(generics: &Generics) -> bool {
    !generics.params.is_empty() || generics.where_clause.is_some()
}

/// All errors of a trait, so that the compiler reports them at once.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    fn refuse(&mut self, is_wrong: bool, at: Span, text: &str) {
        if is_wrong {
            self.add(Error::new(at, text));
        }
    }

    fn keep<T>(&mut self, read: Result<T, Error>) -> Option<T> {
        read.map_err(|error| self.add(error)).ok()
    }

    fn end(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors for a trait.
    fn refused(attribute: TokenStream, item: TokenStream) -> Vec<String> {
        let error = expand(attribute, item).expect_err("it is refused");
        error.into_iter().map(|error| error.to_string()).collect()
    }

    /// The errors for a trait whose only item is the given one.
    fn refused_method(method: TokenStream) -> Vec<String> {
        refused(quote!(), quote! { trait Service { #method } })
    }

    #[test]
    fn what_it_takes_gives_the_trait_a_client_and_a_server() {
        let expanded = expand(
            quote!(),
            quote! {
                /// Adds.
                pub trait Numbers: Sized {
                    /// Adds them.
                    #[method(7)]
                    fn add(&self, numbers: Copied<'_, Vector<u64>>, word: u64, reply: &mut Reply<'_>) -> R;
                    #[method(8)]
                    fn count(&self) -> R { Ok(0) }
                }
            },
        );
        let file: syn::File = syn::parse2(expanded.unwrap()).unwrap();
        let names: Vec<String> = file
            .items
            .iter()
            .filter_map(|item| match item {
                syn::Item::Trait(it) => Some(format!("trait {}", it.ident)),
                syn::Item::Struct(it) => Some(format!("struct {}", it.ident)),
                _ => None,
            })
            .collect();
        assert_eq!(names, ["trait Numbers", "struct NumbersClient", "struct NumbersServer"]);
        let text = quote!(#file).to_string();
        assert!(!text.contains("method (7)"), "the number's attribute is gone: {text}");
        assert_eq!(text.matches("Adds them.").count(), 2, "the trait's method and the client's");
    }

    #[test]
    fn a_trait_that_is_none_of_a_service_is_refused() {
        let one = quote! { #[method(1)] fn one(&self) -> R; };
        for (attribute, item, expected) in [
            (quote!(7), quote! { trait S { #one } }, "takes no arguments"),
            (quote!(), quote! { struct S; }, "expected `trait`"),
            (quote!(), quote! { trait S {} }, "at least one method"),
            (quote!(), quote! { unsafe trait S { #one } }, "not unsafe"),
            (quote!(), quote! { trait S<T> { #one } }, "no parameters"),
            (quote!(), quote! { trait S where Self: Sized { #one } }, "no parameters"),
            (quote!(), quote! { trait S { #one type T; } }, "methods and nothing else"),
            (quote!(), quote! { trait S { #one const N: u64; } }, "methods and nothing else"),
        ] {
            let told = refused(attribute, item);
            assert!(matches!(told.as_slice(), [text] if text.contains(expected)), "{told:?}");
        }
    }

    #[test]
    fn a_method_that_no_client_could_call_is_refused() {
        for (method, expected) in [
            (quote! { fn m(&self) -> R; }, "has no number"),
            (quote! { #[method(1)] #[method(2)] fn m(&self) -> R; }, "a number already"),
            (quote! { #[method("one")] fn m(&self) -> R; }, "of 32 bits"),
            (quote! { #[method(4294967296)] fn m(&self) -> R; }, "of 32 bits"),
            (quote! { #[method(-1)] fn m(&self) -> R; }, "of 32 bits"),
            (quote! { #[method(1)] async fn m(&self) -> R; }, "not async"),
            (quote! { #[method(1)] unsafe fn m(&self) -> R; }, "not unsafe"),
            (quote! { #[method(1)] fn m<T>(&self) -> R; }, "no parameters"),
            (quote! { #[method(1)] fn m<'a>(&self, it: Copied<'a, u64>) -> R; }, "no parameters"),
            (quote! { #[method(1)] fn m() -> R; }, "`&self` first"),
            (quote! { #[method(1)] fn m(self) -> R; }, "`&self` first"),
            (quote! { #[method(1)] fn m(&mut self) -> R; }, "`&self` first"),
            (quote! { #[method(1)] fn m(self: &Arc<Self>) -> R; }, "`&self` first"),
            (quote! { #[method(1)] fn m(&self); }, "a `Result`"),
            (quote! { #[method(1)] fn m(&self, it: Copied<u64>) -> R; }, "`'_`"),
            (quote! { #[method(1)] fn m(&self, it: Text) -> R; }, "`&self`, then"),
            (quote! { #[method(1)] fn m(&self, it: &Text) -> R; }, "`&self`, then"),
            (quote! { #[method(1)] fn m(&self, it: (u64, u64)) -> R; }, "`&self`, then"),
            (quote! { #[method(1)] fn m(&self, a: u64, b: u64) -> R; }, "`&self`, then"),
            (quote! { #[method(1)] fn m(&self, a: u64, b: Copied<'_, u64>) -> R; }, "`&self`, then"),
            (quote! { #[method(1)] fn m(&self, a: &mut Reply<'_>, b: u64) -> R; }, "`&self`, then"),
            (quote! { #[method(1)] fn m(&self, a: &mut Reply, b: &mut Reply) -> R; }, "`&self`, then"),
            (
                quote! { #[method(1)] fn m(&self, a: Copied<'_, u64>, b: Copied<'_, u64>) -> R; },
                "`&self`, then",
            ),
        ] {
            let told = refused_method(method);
            assert!(matches!(told.as_slice(), [text] if text.contains(expected)), "{expected}: {told:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let told = refused(
            quote!(),
            quote! {
                trait S<T> {
                    #[method(1)] fn one(&self) -> R;
                    #[method(1)] fn again(&self) -> R;
                    fn none(&self) -> R;
                }
            },
        );
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told.iter().any(|text| text == "`one` has the number 1 already"), "{told:?}");
    }
}
