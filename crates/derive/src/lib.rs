//! The derive of `portcullis_rpc::Linked`. It is used through that crate.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, GenericParam, parse_macro_input, parse_quote};

/// Derives `Linked` for a struct whose fields are all `Linked`: its copy has each field's copy.
#[proc_macro_derive(Linked)]
pub fn linked(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    copying(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn copying(mut input: DeriveInput) -> Result<proc_macro2::TokenStream, Error> {
    let name = &input.ident;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(name.span(), "a struct is Linked: any bytes are a value of it"));
    };
    let copied = match &data.fields {
        Fields::Named(fields) => {
            let fields = fields.named.iter().map(|field| &field.ident);
            quote! { Self { #(#fields: ::portcullis_rpc::Linked::copy(self.#fields, copying)?,)* } }
        }
        Fields::Unnamed(fields) => {
            let places = (0..fields.unnamed.len()).map(syn::Index::from);
            quote! { Self(#(::portcullis_rpc::Linked::copy(self.#places, copying)?,)*) }
        }
        Fields::Unit => quote! { Self },
    };
    for parameter in &mut input.generics.params {
        if let GenericParam::Type(parameter) = parameter {
            parameter.bounds.push(parse_quote!(::portcullis_rpc::Linked));
        }
    }
    let (parameters, arguments, conditions) = input.generics.split_for_impl();
    Ok(quote! {
        impl #parameters ::portcullis_rpc::Linked for #name #arguments #conditions {
            fn copy<S, R>(
                self,
                copying: &mut ::portcullis_rpc::Copying<'_, S, R>,
            ) -> ::core::result::Result<Self, ::portcullis_rpc::GrowError>
            where
                S: ::portcullis_rpc::Source,
                R: ::portcullis_rpc::Room,
            {
                ::core::result::Result::Ok(#copied)
            }
        }
    })
}
